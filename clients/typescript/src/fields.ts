// Sets the fields of messages from values of callers, with errors that say what is accepted.

import { type DescField, type DescMessage, type Message, ScalarType } from "@bufbuild/protobuf";
import { invalid } from "./errors.js";

const RANGES: { readonly [type: number]: readonly [number | bigint, number | bigint] } = {
  [ScalarType.UINT32]: [0, 2 ** 32 - 1],
  [ScalarType.UINT64]: [0n, 2n ** 64n - 1n],
  [ScalarType.SINT32]: [-(2 ** 31), 2 ** 31 - 1],
};
/** A longer name gets no suggestion: to compare two takes time in proportion to both of their lengths. */
const LONGEST_NAME = 100;
const MAX_FLOAT = 3.4028234663852886e38;
/** A half of a pair of UTF-16 alone, which UTF-8 cannot encode. */
const LONE_SURROGATE = /[\uD800-\uDBFF](?![\uDC00-\uDFFF])|(?<![\uD800-\uDBFF])[\uDC00-\uDFFF]/;

type Loose = Record<string, unknown>;

/**
 * Set a field that is not a message; `option` names it in errors. One string stands for a list of it.
 *
 * Throws TypeError for a wrong type, InvalidRequest for a value out of the field's range.
 */
export function assign(schema: DescMessage, message: Message, name: string, value: unknown, option = name): void {
  const field = schema.field[name];
  if (field === undefined) throw new Error(`${schema.typeName} has no field ${name}`);
  const target = message as unknown as Loose;
  if (field.fieldKind === "list") target[name] = listOf(field, value, option);
  else if (field.fieldKind === "map") target[name] = mapOf(field, value, option);
  else if (field.fieldKind === "scalar") {
    const checked = scalar(field.scalar, value, option);
    if (field.oneof === undefined) target[name] = checked;
    else target[field.oneof.localName] = { case: name, value: checked };
  } else throw new Error(`${name} is a message`);
}

/** A copy of a list of numbers or texts, all of which the field can hold. */
function listOf(field: DescField & { fieldKind: "list" }, value: unknown, option: string): unknown[] {
  const type = field.scalar ?? ScalarType.STRING;
  if (typeof value === "string" && type === ScalarType.STRING) return [scalar(type, value, option)];
  if (typeof value === "string" || typeof value !== "object" || value === null || !("length" in value)) {
    throw new TypeError(`${option}: expected a list of ${kind(type)}s, got ${nameOf(value)}`);
  }
  return Array.from(value as ArrayLike<unknown>, (one, index) => scalar(type, one, `${option}[${index}]`));
}

function mapOf(field: DescField & { fieldKind: "map" }, value: unknown, option: string): Loose {
  const mapped: Loose = {};
  const type = field.scalar ?? ScalarType.STRING;
  expectObject(value, `an object of ${kind(field.mapKey)} to ${kind(type)}`, option);
  for (const [key, one] of Object.entries(value)) {
    scalar(field.mapKey, /^\d+$/.test(key) ? Number(key) : NaN, `${option}[${key}]`);
    mapped[key] = scalar(type, one, `${option}[${key}]`);
  }
  return mapped;
}

/** The value, if a field of the type can hold it. */
function scalar(type: ScalarType, value: unknown, option: string): unknown {
  const wanted = kind(type);
  if (type === ScalarType.UINT64) {
    if (typeof value === "number" && Number.isSafeInteger(value)) value = BigInt(value);
    if (typeof value !== "bigint") throw wrong(value, "a whole number or bigint", option);
  } else if (typeof value !== wanted) {
    throw wrong(value, `a ${wanted}`, option);
  }
  if (typeof value === "string" && LONE_SURROGATE.test(value)) {
    throw invalid(option, "half of a surrogate pair: expected text that UTF-8 can encode");
  }
  if (type === ScalarType.FLOAT) {
    if (Number.isFinite(value) && Math.abs(value as number) > MAX_FLOAT) outOfRange(value, -MAX_FLOAT, MAX_FLOAT, option);
    return value;
  }
  const range = RANGES[type];
  if (range === undefined) return value;
  if (typeof value === "number" && !Number.isInteger(value)) throw wrong(value, "a whole number", option);
  const [low, high] = range;
  if ((value as number) < low || (value as number) > high) outOfRange(value, low, high, option);
  return value;
}

function outOfRange(value: unknown, low: number | bigint, high: number | bigint, option: string): never {
  const accepted = (value as number) < low ? `at least ${low}` : `at most ${high}`; // the other bound is only the type's
  throw invalid(option, `${String(value)} is out of range: expected ${accepted}`);
}

function kind(type: ScalarType): "string" | "boolean" | "number" {
  if (type === ScalarType.STRING) return "string";
  return type === ScalarType.BOOL ? "boolean" : "number";
}

function wrong(value: unknown, wanted: string, option: string): TypeError {
  const got = typeof value === "number" ? String(value) : nameOf(value);
  return new TypeError(`${option}: expected ${wanted}, got ${got}`);
}

/** Throw TypeError unless `value` is an object other than a list; `wanted` describes it. */
export function expectObject(value: unknown, wanted: string, option: string): asserts value is Record<string, unknown> {
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new TypeError(`${option}: expected ${wanted}, got ${nameOf(value)}`);
  }
}

/** Throw TypeError unless `value` is a list. */
export function expectList(value: unknown, wanted: string, option: string): asserts value is readonly unknown[] {
  if (!Array.isArray(value)) throw new TypeError(`${option}: expected ${wanted}, got ${nameOf(value)}`);
}

/** Throw TypeError for a key that is not known. */
export function expectKeys(value: object, keys: readonly string[], option: string): void {
  const unknown = Object.keys(value).find((key) => !keys.includes(key));
  if (unknown !== undefined) throw new TypeError(`${option}: unknown key ${unknown}: expected ${keys.join(", ")}`);
}

/** What a value is, for people. */
export function nameOf(value: unknown): string {
  if (value === null) return "null";
  if (typeof value !== "object") return typeof value;
  return value.constructor?.name ?? "object";
}

/** `value` as JSON. Throws TypeError, naming `option`, if JSON cannot hold it. */
export function jsonText(value: unknown, option: string): string {
  let text: string | undefined;
  try {
    text = JSON.stringify(value);
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    throw new TypeError(`${option}: not JSON (${why}): expected values that JSON can hold`);
  }
  if (text === undefined) throw new TypeError(`${option}: expected a value that JSON can hold, got ${nameOf(value)}`);
  return text;
}

/** Those of an object's entries that have a value: undefined and null mean that an option is not given. */
export function given(options: object): Map<string, unknown> {
  expectObject(options, "an object such as { maxTokens: 16 }", "options");
  return new Map(Object.entries(options).filter(([, value]) => value !== undefined && value !== null));
}

/** The known name that was probably meant by an unknown one: of another case or with underscores, or misspelt. */
export function nearest(name: string, known: Iterable<string>): string | undefined {
  if (name.length > LONGEST_NAME) return undefined;
  const plain = (one: string) => one.toLowerCase().replaceAll(/[_-]/g, "");
  let best: { one: string; distance: number } | undefined;
  for (const one of known) {
    const distance = editDistance(plain(name), plain(one));
    if (distance <= Math.floor(one.length / 5) && distance < (best?.distance ?? Infinity)) best = { one, distance };
  }
  return best?.one;
}

/** How many letters must be added, left out or replaced. */
function editDistance(one: string, other: string): number {
  let row = Array.from({ length: other.length + 1 }, (_, index) => index);
  for (let i = 1; i <= one.length; i++) {
    const next = [i];
    for (let j = 1; j <= other.length; j++) {
      const replaced = (row[j - 1] ?? 0) + (one[i - 1] === other[j - 1] ? 0 : 1);
      next.push(Math.min(replaced, (row[j] ?? 0) + 1, (next[j - 1] ?? 0) + 1));
    }
    row = next;
  }
  return row.at(-1) ?? 0;
}
