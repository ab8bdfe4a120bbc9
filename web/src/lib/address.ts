// Where an answer is found: the resource, then its parameters by name, as Python's `address` writes them.

export type Parameters = Record<string, string | number | boolean | null | undefined>;

export function address(resource: string, parameters: Parameters = {}): string {
  const given = Object.entries(parameters)
    .filter(([, value]) => value !== null && value !== undefined)
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([name, value]) => `${encode(name)}=${encode(String(value))}`);
  return given.length ? `${resource}?${given.join("&")}` : resource;
}

// encodeURIComponent leaves these as they are, Python's quote does not; "/" is the other way round.
function encode(text: string): string {
  return encodeURIComponent(text)
    .replace(/[!'()*]/g, (char) => `%${char.charCodeAt(0).toString(16).toUpperCase()}`)
    .replace(/%2F/g, "/");
}
