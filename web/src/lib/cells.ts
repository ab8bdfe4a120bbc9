// What pictures of cells on a canvas share: the way an arrow key goes, and the cell that a mouse is over.

export type Cell = [number, number]; // row, column

const STEPS: Record<string, Cell> = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

// Rows and columns that an arrow key moves by; nothing for another key.
export const arrow = (event: KeyboardEvent): Cell | undefined => STEPS[event.key];

// The cell of a canvas, cut into so many rows and columns, under a mouse; null beside it.
export function cellUnder(event: MouseEvent, canvas: HTMLCanvasElement | undefined, rows: number, columns: number): Cell | null {
  const box = canvas?.getBoundingClientRect();
  if (!box) return null;
  const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
  const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
  return row >= 0 && row < rows && column >= 0 && column < columns ? [row, column] : null;
}
