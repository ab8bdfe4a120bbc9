"""The transformer itself. Knows tensors; knows no file, tokenizer, optimizer or family name."""
