import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

// One script and one style sheet under fixed names: the server sends them, and a saved file holds them.
export default defineConfig({
  plugins: [svelte()],
  base: "./",
  build: {
    outDir: "../src/pellucid/views/compiled",
    emptyOutDir: true,
    target: "es2022",
    cssCodeSplit: false,
    modulePreload: false,
    assetsInlineLimit: 100_000,
    rollupOptions: {
      output: {
        entryFileNames: "page.js",
        assetFileNames: "page[extname]",
        codeSplitting: false,
      },
    },
  },
});
