// The six views in the order of the lesson, each with its name and its key.

import type { Component } from "svelte";

import Attention from "../views/Attention.svelte";
import Ffn from "../views/Ffn.svelte";
import Glance from "../views/Glance.svelte";
import Heads from "../views/Heads.svelte";
import Pass from "../views/Pass.svelte";
import Stream from "../views/Stream.svelte";
import type { ViewName } from "./state.svelte";

export const TABS: { name: ViewName; title: string; view: Component }[] = [
  { name: "glance", title: "At a glance", view: Glance },
  { name: "stream", title: "Residual stream", view: Stream },
  { name: "attention", title: "Attention", view: Attention },
  { name: "heads", title: "Heads", view: Heads },
  { name: "ffn", title: "FFN and norm", view: Ffn },
  { name: "pass", title: "The whole pass", view: Pass },
];
