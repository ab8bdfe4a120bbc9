// Light or dark: what the system says, until the person chooses. Canvases read their colours from here, so that they are
// drawn again when these change.

type Choice = "auto" | "light" | "dark";
const KEPT = "pellucid-theme";

class Theme {
  choice = $state<Choice>("auto");
  private system = $state(false);

  start(): void {
    const asked = window.matchMedia("(prefers-color-scheme: dark)");
    this.system = asked.matches;
    asked.addEventListener("change", (event) => (this.system = event.matches));
    try {
      const kept = localStorage.getItem(KEPT);
      if (kept === "light" || kept === "dark") this.choice = kept;
    } catch {
      // A frame that may not keep anything follows the system.
    }
  }

  get dark(): boolean {
    return this.choice === "auto" ? this.system : this.choice === "dark";
  }

  toggle(): void {
    this.choice = this.dark ? "light" : "dark";
    try {
      localStorage.setItem(KEPT, this.choice);
    } catch {
      // The choice holds for this visit then.
    }
  }

  // A colour of the page as [red, green, blue]; asking makes whatever draws with it follow the theme.
  colour(name: string): [number, number, number] {
    const text = written(COLOURS[this.dark ? "dark" : "light"](name));
    return [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16)) as [number, number, number];
  }
}

// A colour as #rrggbb, in whatever way the style sheet has it: what compiles it writes #fff for #ffffff.
function written(colour: string): string {
  const pen = document.createElement("canvas").getContext("2d");
  if (!pen) return colour;
  pen.fillStyle = colour;
  return String(pen.fillStyle);
}

// The attribute is set before the variables are read.
const read = (mode: "light" | "dark") => (name: string) => {
  document.documentElement.dataset["theme"] = mode;
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
};
const COLOURS = { light: read("light"), dark: read("dark") };

export const theme = new Theme();
