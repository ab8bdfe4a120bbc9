import { mount } from "svelte";

import App from "./App.svelte";
import "./page.css";
import type { SavedFile } from "./lib/source";

// A saved file holds its answers in itself; without any, a server gives them.
const held = document.getElementById("pellucid-saved");
const saved = held ? (JSON.parse(held.textContent ?? "") as SavedFile) : null;
const target = document.getElementById("page");
if (target) mount(App, { target, props: { saved } });
