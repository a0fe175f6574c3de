// Tools that a model may call: from what callers give to the contract's Tool and ToolChoice.

import { create, type DescMessage, type Message } from "@bufbuild/protobuf";
import { invalid } from "./errors.js";
import { assign, expectList, expectObject, jsonText, nearest } from "./fields.js";
import { schemaText } from "./schemas.js";
import {
  type Chat,
  ChatSchema,
  ToolChoice_Mode,
  ToolChoiceSchema,
  ToolSchema,
} from "./stubs/ringline/inference/v1/inference_pb.js";

export const TOOL_OPTIONS = ["tools", "toolChoice", "parallelToolCalls"];
const KEYS = ["name", "description", "parameters", "strict"];
const MODES: { readonly [mode: string]: ToolChoice_Mode } = {
  auto: ToolChoice_Mode.AUTO,
  none: ToolChoice_Mode.NONE,
  required: ToolChoice_Mode.REQUIRED,
};
const ACCEPTED = `expected objects with ${KEYS.join(", ")}, as such or in OpenAI's form`;
/** Other APIs' keys for the parameters. */
const PARAMETERS_ELSEWHERE = ["input_schema", "inputSchema", "schema"];

type Given = Readonly<Record<string, unknown>>;

/**
 * Write the options in `TOOL_OPTIONS` into `chat`.
 *
 * Functions become typed tools, whose calls the server finds in the answer. If any tool has another type or further keys,
 * all go to the model's template unchanged.
 */
export function setTools(chat: Chat, options: ReadonlyMap<string, unknown>): void {
  const others = TOOL_OPTIONS.filter((name) => name !== "tools" && options.has(name));
  const tools = options.get("tools");
  if (tools === undefined) {
    if (others.length > 0) {
      throw new TypeError(`option ${others[0]} is for requests with tools: give tools too, or leave it out`);
    }
    return;
  }
  expectList(tools, "a list of tools", "tools");
  const functions = tools.map((tool, index) => functionOf(tool, `tools[${index}]`));
  const odd = functions.indexOf(undefined);
  if (odd >= 0) {
    if (others.length > 0) {
      throw new TypeError(`${others[0]}: needs tools that are functions, and tools[${odd}] is none: ${ACCEPTED}`);
    }
    assign(ChatSchema, chat, "toolsJson", jsonText(tools, "tools"), "tools");
    return;
  }
  chat.tools = functions.map((each, index) => {
    const tool = create(ToolSchema);
    setFunction(ToolSchema, tool, each ?? {}, `tools[${index}]`);
    return tool;
  });
  if (others.length === 0) return;
  chat.toolChoice = create(ToolChoiceSchema);
  const choice = options.get("toolChoice");
  if (choice !== undefined) setChoice(chat, choice);
  const parallel = options.get("parallelToolCalls");
  if (parallel !== undefined) {
    if (typeof parallel !== "boolean") {
      throw new TypeError(`parallelToolCalls: expected a boolean, got ${typeof parallel}`);
    }
    chat.toolChoice.single = !parallel;
  }
}

/** Write those of a function's name, description, parameters and strict that are given into `target`. */
export function setFunction(schema: DescMessage, target: Message, fn: Given, path: string): void {
  for (const [key, value] of Object.entries(fn)) {
    if (value === undefined || value === null) continue;
    if (key === "parameters") {
      assign(schema, target, "parametersJson", schemaText(value, `${path}.parameters`), `${path}.parameters`);
    } else {
      assign(schema, target, key, value, `${path}.${key}`);
    }
  }
}

/** Those of a function's keys that are given; undefined for a tool of another type or with other keys. */
function functionOf(tool: unknown, path: string): Given | undefined {
  expectObject(tool, ACCEPTED.replace("expected ", ""), path);
  if ("type" in tool && tool.type !== "function") return undefined;
  const wrapped = "function" in tool;
  const around = Object.keys(tool).every((key) => (wrapped ? ["type", "function"] : ["type", ...KEYS]).includes(key));
  const where = wrapped ? `${path}.function` : path;
  const whole = wrapped ? tool.function : tool;
  expectObject(whole, "an object such as { name: 'add', parameters: {…} }", where);
  const { type: _, ...fn } = whole;
  if (!("name" in fn)) throw new TypeError(`${where}: has no name: ${ACCEPTED}`);
  const unknown = Object.keys(fn).filter((key) => !KEYS.includes(key));
  for (const key of unknown) {
    const meant = PARAMETERS_ELSEWHERE.includes(key) ? "parameters" : nearest(key, KEYS);
    if (meant !== undefined) throw new TypeError(`${where}: unknown key ${key}; did you mean ${meant}?`);
  }
  return around && unknown.length === 0 ? fn : undefined;
}

/** `value`: auto, none, required or a tool's name; or an object that names a tool, as OpenAI's does. */
function setChoice(chat: Chat, value: unknown): void {
  const choice = (chat.toolChoice ??= create(ToolChoiceSchema));
  let name = value;
  if (typeof value === "object" && value !== null) {
    const fn = "function" in value ? value.function : value;
    name = typeof fn === "object" && fn !== null && "name" in fn ? fn.name : undefined;
  } else if (typeof value === "string" && Object.hasOwn(MODES, value)) {
    choice.mode = MODES[value] ?? ToolChoice_Mode.AUTO;
    return;
  }
  if (typeof name !== "string") {
    throw new TypeError("toolChoice: expected auto, none, required, the name of a tool or an object that has it");
  }
  const names = chat.tools.map((tool) => tool.name);
  if (!names.includes(name)) {
    const some = names.slice(0, 8).join(", ") + (names.length > 8 ? ", …" : "");
    const problem = `${name.slice(0, 80)} is not a tool of this request: expected auto, none, required, ${some}`;
    throw invalid("toolChoice", problem);
  }
  choice.mode = ToolChoice_Mode.NAMED;
  choice.name = name;
}
