// JSON Schemas as callers give them: an object, a JSON text, a boolean, or a schema object such as zod's.

import { ParseError } from "./errors.js";
import { expectObject, jsonText } from "./fields.js";
import type { FormOptions, SchemaObject } from "./options.js";
import type { Reader } from "./results.js";

const MAPS = ["$defs", "definitions", "properties", "patternProperties"];
const LISTS = ["anyOf", "oneOf", "prefixItems"];
const SINGLE = ["items", "additionalProperties"];

type Schema = Record<string, unknown>;

function isObject(value: unknown): boolean {
  return typeof value === "object" && value !== null;
}

/** Whether `value` is a schema object of a library. */
export function isSchemaObject(value: unknown): value is SchemaObject {
  return value !== null && (typeof value === "object" || typeof value === "function") && isObject((value as Schema)["~standard"]);
}

/**
 * A schema as JSON text. A schema object's admits no extra properties where it says nothing of them, since the library
 * would drop them. Throws TypeError, naming `option`, for a value that is no schema.
 */
export function schemaText(value: unknown, option: string): string {
  if (typeof value === "string") return value;
  if (typeof value === "boolean") return String(value);
  if (isSchemaObject(value)) return jsonText(schemaOf(value, option), option);
  expectObject(value, "a JSON Schema as an object or a text, a boolean, or a schema object such as zod's", option);
  const wrapped = ["schema", "json_schema", "jsonSchema"].find((key) => typeof value[key] === "object");
  if (wrapped !== undefined && value[wrapped] !== null) {
    throw new TypeError(`${option}: expected the schema itself, as at ${wrapped} of this object`);
  }
  return jsonText(value, option);
}

/** The JSON Schema of what a schema object accepts. */
export function schemaOf(object: SchemaObject, option: string): Schema {
  const { vendor, jsonSchema } = object["~standard"];
  if (jsonSchema === undefined) {
    const advice = vendor === "zod" ? "zod 4.2 or later, or z.toJSONSchema(schema)" : "its JSON Schema as an object";
    throw new TypeError(`${option}: this schema object of ${vendor} does not say its JSON Schema: give ${advice}`);
  }
  let schema: Schema;
  try {
    // By way of JSON: what comes in a circle has no text, and nothing of the library's is changed.
    schema = JSON.parse(JSON.stringify(jsonSchema.input({ target: "draft-2020-12" })));
    expectObject(schema, "an object", "its JSON Schema");
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    throw new TypeError(`${option}: this schema object of ${vendor} has no JSON Schema (${why})`, { cause: error });
  }
  delete schema.$schema;
  close(schema);
  return schema;
}

/** Forbid further properties wherever a schema lists properties and says nothing of others. */
function close(schema: unknown): void {
  if (typeof schema !== "object" || schema === null) return;
  const known = schema as Schema;
  if ("properties" in known || "patternProperties" in known) known.additionalProperties ??= false;
  for (const key of SINGLE) close(known[key]);
  for (const key of LISTS) if (Array.isArray(known[key])) known[key].forEach(close);
  for (const key of MAPS) Object.values(known[key] ?? {}).forEach(close);
}

/** The parser of a JSON answer: by the schema object if there is one; undefined if the form is not JSON. */
export function jsonReader<T>({ jsonSchema, jsonObject }: FormOptions<T>): Reader<T> | undefined {
  if (isSchemaObject(jsonSchema)) {
    const { validate } = jsonSchema["~standard"];
    return (content) => {
      const result = validate(JSON.parse(content));
      if (result instanceof Promise) {
        throw new ParseError("the schema object validates asynchronously: parse the content with it yourself");
      }
      if (result.issues === undefined) return result.value as T;
      const issues = result.issues.map((issue) => `${placeOf(issue.path)}${issue.message}`);
      throw new ParseError(issues.join("; "));
    };
  }
  if (jsonSchema === undefined && !jsonObject) return undefined;
  return (content) => JSON.parse(content) as T;
}

function placeOf(path: readonly unknown[] | undefined): string {
  const keys = (path ?? []).map((step) => (typeof step === "object" && step && "key" in step ? step.key : step));
  return keys.length > 0 ? `${keys.map(String).join(".")}: ` : "";
}
