"""The explorer's server: a model, its runs and all that pages ask of them, over HTTP."""
