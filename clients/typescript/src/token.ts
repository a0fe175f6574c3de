// Bearer tokens.

import { invalid } from "./errors.js";

const TOKEN = /^[\x21-\x7e]+$/;

/** The text, if a header can hold it as a token. Throws InvalidRequest that names `name` and does not show the token. */
export function checkToken(text: string, name: string): string {
  if (typeof text === "string" && TOKEN.test(text)) return text;
  throw invalid(name, "no token: expected printable ASCII characters without blanks");
}
