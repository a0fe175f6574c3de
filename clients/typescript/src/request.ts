// Builds the messages of requests from prompts and options.

import { create, type DescMessage, type Message as ProtoMessage } from "@bufbuild/protobuf";
import { constraintOf, FORM_OPTIONS } from "./constraints.js";
import { hasPictures, setContent } from "./content-parts.js";
import { invalid } from "./errors.js";
import { assign, expectKeys, expectList, expectObject, given, jsonText, nameOf, nearest } from "./fields.js";
import type { Options, Prompt, TokenizeOptions } from "./options.js";
import {
  type Chat,
  type ChatMessage,
  ChatMessageSchema,
  ChatSchema,
  type DetokenizeRequest,
  DetokenizeRequestSchema,
  type GenerateRequest,
  GenerateRequestSchema,
  OutputParamsSchema,
  SamplingParamsSchema,
  StoppingParamsSchema,
  type TokenizeRequest,
  TokenizeRequestSchema,
  ToolCallSchema,
  ToolChoice_Mode,
} from "./stubs/ringline/inference/v1/inference_pb.js";
import { ParseParamsSchema } from "./stubs/ringline/types/v1/part_pb.js";
import {
  BeamSearch_EarlyStopping,
  BeamSearchSchema,
  NoRepeatNgramSchema,
  TokenIdsSchema,
} from "./stubs/ringline/types/v1/sampling_pb.js";
import { setTools, TOOL_OPTIONS } from "./tools.js";

export const CALL_OPTIONS = ["timeoutMs", "signal"];
const REQUEST_OPTIONS = [
  "requestId",
  "model",
  "adapter",
  "priority",
  "cacheSalt",
  "requires",
  "speculation",
  "traceparent",
  "addSpecialTokens",
  "truncatePromptTokens",
];
const CHAT_OPTIONS = [
  ...TOOL_OPTIONS,
  "templateArgs",
  "addGenerationPrompt",
  "continueFinalMessage",
  "templateName",
];
const MESSAGE_KEYS = ["role", "content", "reasoning", "toolCalls", "toolCallId", "name"];
/** OpenAI's names of a message's keys. */
const MESSAGE_ALIASES: { readonly [key: string]: string } = { tool_calls: "toolCalls", tool_call_id: "toolCallId" };
const PARSE_KEYS = ["toolCalls", "reasoning", "beginsInReasoning", "toolNames", "contentTokens", "argumentTypes"];
/** The parts of a request whose fields are options of their own. */
const PARTS: readonly (readonly ["sampling" | "stopping" | "output", DescMessage])[] = [
  ["sampling", SamplingParamsSchema],
  ["stopping", StoppingParamsSchema],
  ["output", OutputParamsSchema],
];
const SPECIAL = ["parse", "noRepeatNgram", "beamSearch"];
/** For each option, the part of the request that holds it. */
const NESTED = new Map(
  PARTS.flatMap(([part, schema]) =>
    schema.fields.filter(({ localName }) => !SPECIAL.includes(localName)).map(({ localName }) => [localName, part]),
  ),
);
const KNOWN = [
  ...CALL_OPTIONS,
  ...REQUEST_OPTIONS,
  ...CHAT_OPTIONS,
  ...FORM_OPTIONS,
  ...NESTED.keys(),
  ...SPECIAL,
];
/** Options of other APIs, with what to give instead. */
const ELSEWHERE: { readonly [name: string]: string } = {
  stream: "call stream() in place of generate()",
  schema: "it is called jsonSchema here",
  response_format: "the form of an answer is jsonSchema, jsonObject, regex, choice, grammar or structuralTags",
  responseFormat: "the form of an answer is jsonSchema, jsonObject, regex, choice, grammar or structuralTags",
  functions: "they are called tools here",
  max_completion_tokens: "it is called maxTokens here",
  maxCompletionTokens: "it is called maxTokens here",
  maxOutputTokens: "it is called maxTokens here",
  timeout: "it is called timeoutMs here, in milliseconds",
  abortSignal: "it is called signal here",
  chat_template_kwargs: "it is called templateArgs here",
  messages: "give the messages in place of the prompt",
};

/**
 * The request for one prompt and its options, without `timeoutMs` and `signal`.
 *
 * Throws TypeError for an unknown option or a value of a wrong type, InvalidRequest for a value that the field cannot
 * hold; the server checks the rest.
 */
export function buildRequest(prompt: Prompt, options: Options): GenerateRequest {
  const request = create(GenerateRequestSchema);
  const left = given(options);
  for (const name of CALL_OPTIONS) left.delete(name);
  setPrompt(request, prompt, left);
  if (request.prompt.case === "chat" && request.prompt.value.tools.length > 0) takeResolvedForm(left);
  const constraint = constraintOf(take(left, FORM_OPTIONS));
  if (constraint !== undefined) request.constraint = constraint;
  setSpecial(request, take(left, SPECIAL));
  for (const [name, value] of left) {
    const part = NESTED.get(name);
    if (REQUEST_OPTIONS.includes(name)) assign(GenerateRequestSchema, request, name, value);
    else if (part !== undefined) assignPart(request, part, name, value);
    else if (CHAT_OPTIONS.includes(name)) throw onlyForMessages(name);
    else throw unknownOption(name, KNOWN);
  }
  request.requires.push(...needed(request).filter((name) => !request.requires.includes(name)));
  return request;
}

/** The capabilities without which a server would ignore a part of the request. */
export function needed(request: GenerateRequest): string[] {
  const chat = request.prompt.case === "chat" ? request.prompt.value : undefined;
  const tools = (chat?.tools.length ?? 0) > 0;
  const parse = request.output?.parse;
  const parses = parse !== undefined || tools;
  const { constraint, stopping } = request;
  const calls = constraint?.kind.case === "toolCalls" ? constraint.kind.value : undefined;
  const mayCall = tools && chat?.toolChoice?.mode !== ToolChoice_Mode.NONE;
  const stops = (stopping?.stop.length ?? 0) + (stopping?.stopTokenIds.length ?? 0) > 0;
  const asked: Record<string, boolean> = {
    answer_stops: parses && parse?.reasoning !== "none" && stopping?.stopInReasoning === false && stops,
    adapters: request.adapter !== "",
    beam_search: request.beamSearch !== undefined,
    constraint: constraint !== undefined,
    form_beside_tools: constraint !== undefined && (mayCall || calls?.form !== undefined),
    parse: parses,
    reasoning_budget: stopping?.maxReasoningTokens !== undefined,
    content_tokens: parse?.contentTokens ?? false,
    media: hasPictures(chat),
    no_repeat_ngram: request.sampling?.noRepeatNgram !== undefined,
    tools,
  };
  return Object.keys(asked).filter((name) => asked[name]);
}

/** The request for the token ids of a text or a chat. */
export function buildTokenize(prompt: Prompt, options: TokenizeOptions): TokenizeRequest {
  const request = create(TokenizeRequestSchema);
  const left = given(options);
  for (const name of CALL_OPTIONS) left.delete(name);
  if (typeof prompt === "string") assign(TokenizeRequestSchema, request, "text", prompt, "prompt");
  else if (Array.isArray(prompt)) request.input = { case: "chat", value: chatOf(prompt, take(left, CHAT_OPTIONS)) };
  else throw new TypeError(`prompt: expected a text or a list of messages, got ${nameOf(prompt)}`);
  for (const [name, value] of left) {
    if (CHAT_OPTIONS.includes(name)) throw onlyForMessages(name);
    if (!["model", "addSpecialTokens"].includes(name)) {
      throw unknownOption(name, [...CALL_OPTIONS, ...CHAT_OPTIONS, "model", "addSpecialTokens"]);
    }
    assign(TokenizeRequestSchema, request, name, value);
  }
  return request;
}

/** The request for the text of token ids; `also`: its options beside `model`. */
export function buildDetokenize(
  tokenIds: ArrayLike<number>,
  options: object,
  also: readonly string[] = [],
): DetokenizeRequest {
  checkOptions(options, [...CALL_OPTIONS, "model", ...also]);
  const request = create(DetokenizeRequestSchema);
  assign(DetokenizeRequestSchema, request, "tokenIds", tokenIds);
  for (const [name, value] of given(options)) {
    if (!CALL_OPTIONS.includes(name)) assign(DetokenizeRequestSchema, request, name, value);
  }
  return request;
}

function setPrompt(request: GenerateRequest, prompt: unknown, left: Map<string, unknown>): void {
  if (typeof prompt === "string") {
    assign(GenerateRequestSchema, request, "text", prompt, "prompt");
  } else if (Array.isArray(prompt)) {
    if (typeof prompt[0] === "number") {
      throw new TypeError("prompt: expected messages, got numbers: { tokenIds: […] } is a prompt of token ids");
    }
    request.prompt = { case: "chat", value: chatOf(prompt, take(left, CHAT_OPTIONS)) };
  } else {
    expectObject(prompt, "a text, a list of messages, or { tokenIds: […] }", "prompt");
    expectKeys(prompt, ["tokenIds"], "prompt");
    const ids = create(TokenIdsSchema);
    assign(TokenIdsSchema, ids, "ids", prompt.tokenIds, "tokenIds");
    request.prompt = { case: "tokenIds", value: ids };
  }
}

/** A conversation, its tools and its template's options. */
function chatOf(messages: readonly unknown[], options: ReadonlyMap<string, unknown>): Chat {
  const chat = create(ChatSchema);
  chat.messages = messages.map((message, index) => messageOf(message, `messages[${index}]`));
  setTools(chat, options);
  for (const [name, value] of options) {
    if (name === "templateArgs") assign(ChatSchema, chat, "templateArgsJson", jsonText(value, name), name);
    else if (!TOOL_OPTIONS.includes(name)) assign(ChatSchema, chat, name, value);
  }
  return chat;
}

function messageOf(message: unknown, path: string): ChatMessage {
  expectObject(message, "an object such as { role: 'user', content: 'Hello' }", path);
  const target = create(ChatMessageSchema);
  for (const [alias, value] of Object.entries(message)) {
    const key = MESSAGE_ALIASES[alias] ?? alias;
    if (!MESSAGE_KEYS.includes(key)) {
      throw new TypeError(`${path}: unknown key ${alias}: expected ${MESSAGE_KEYS.join(", ")}`);
    }
    if (value === undefined || value === null) continue;
    if (key === "toolCalls") {
      expectList(value, "a list of calls", `${path}.${alias}`);
      target.toolCalls = value.map((call, index) => toolCallOf(call, `${path}.${alias}[${index}]`));
    } else if (key === "content" && Array.isArray(value)) {
      setContent(target, value, `${path}.content`);
    } else {
      assign(ChatMessageSchema, target, key, value, `${path}.${alias}`);
    }
  }
  const hasContent = message.content !== undefined && message.content !== null;
  if (!hasContent && target.toolCalls.length === 0) {
    throw invalid(`${path}.content`, "missing: expected a text; only a message with toolCalls may have none");
  }
  return target;
}

function toolCallOf(call: unknown, path: string): ReturnType<typeof create<typeof ToolCallSchema>> {
  expectObject(call, "an object such as { id: 'c1', name: 'add', arguments: { a: 1 } }", path);
  const fn: unknown = call.function ?? call;
  expectObject(fn, "an object such as { name: 'add', arguments: { a: 1 } }", `${path}.function`);
  const { arguments: given = "{}", name = "" } = fn;
  const text = typeof given === "string" ? given : jsonText(given, `${path}.arguments`);
  const target = create(ToolCallSchema);
  assign(ToolCallSchema, target, "id", call.id ?? "", `${path}.id`);
  assign(ToolCallSchema, target, "name", name, `${path}.name`);
  assign(ToolCallSchema, target, "argumentsJson", text, `${path}.arguments`);
  return target;
}

/** Options that a server resolved have calls of tools; where the tools are given again, only the form beside them counts. */
function takeResolvedForm(left: Map<string, unknown>): void {
  const calls = left.get("toolCalls");
  if (calls === undefined) return;
  left.delete("toolCalls");
  const after = left.get("afterReasoning");
  left.delete("afterReasoning");
  const form = typeof calls === "object" && calls !== null && "form" in calls ? calls.form : undefined;
  if (typeof form !== "object" || form === null) return;
  for (const [name, value] of Object.entries(form)) left.set(name, value);
  if (after !== undefined) left.set("afterReasoning", after);
}

function setSpecial(request: GenerateRequest, options: ReadonlyMap<string, unknown>): void {
  const parse = options.get("parse");
  if (parse !== undefined) setParse(request, parse);
  const ngram = options.get("noRepeatNgram");
  if (ngram !== undefined) {
    const target = create(NoRepeatNgramSchema);
    assignKeys(NoRepeatNgramSchema, target, ngram, ["ngramSize", "windowSize", "allowedTokenIds"], "noRepeatNgram");
    for (const key of ["ngramSize", "windowSize"]) {
      if ((ngram as Record<string, unknown>)[key] === undefined) {
        throw invalid(`noRepeatNgram.${key}`, "missing: expected a number of tokens");
      }
    }
    request.sampling ??= create(SamplingParamsSchema);
    request.sampling.noRepeatNgram = target;
  }
  const beams = options.get("beamSearch");
  if (beams !== undefined) setBeamSearch(request, beams);
}

function setParse(request: GenerateRequest, value: unknown): void {
  const hasTools = request.prompt.case === "chat" && request.prompt.value.tools.length > 0;
  if (value === false && !hasTools) return; // there is nothing to turn off
  request.output ??= create(OutputParamsSchema);
  const target = (request.output.parse = create(ParseParamsSchema));
  if (value === false) target.toolCalls = target.reasoning = "none";
  if (typeof value === "boolean") return;
  expectObject(value, "true, or an object such as { reasoning: 'think' }", "parse");
  const { argumentTypes, ...others } = value; // from options that a server resolved
  if (Array.isArray(argumentTypes)) target.argumentTypes = argumentTypes;
  assignKeys(ParseParamsSchema, target, others, PARSE_KEYS, "parse");
}

function setBeamSearch(request: GenerateRequest, value: unknown): void {
  expectObject(value, "an object such as { width: 4 }", "beamSearch");
  const target = (request.beamSearch = create(BeamSearchSchema));
  const { earlyStopping = false, ...others } = value;
  assignKeys(BeamSearchSchema, target, others, ["width", "lengthPenalty"], "beamSearch");
  if (others.width === undefined) throw invalid("beamSearch.width", "missing: expected the number of beams");
  if (earlyStopping === false) target.earlyStopping = BeamSearch_EarlyStopping.NO;
  else if (earlyStopping === true) target.earlyStopping = BeamSearch_EarlyStopping.YES;
  else if (earlyStopping === "never") target.earlyStopping = BeamSearch_EarlyStopping.NEVER;
  else throw invalid("beamSearch.earlyStopping", `${String(earlyStopping)}: expected true, false or 'never'`);
}

function assignKeys(
  schema: DescMessage,
  target: ProtoMessage,
  value: unknown,
  keys: readonly string[],
  option: string,
): void {
  expectObject(value, `an object with ${keys.join(", ")}`, option);
  expectKeys(value, keys, option);
  for (const [key, one] of Object.entries(value)) {
    if (one !== undefined && one !== null) assign(schema, target, key, one, `${option}.${key}`);
  }
}

function assignPart(request: GenerateRequest, part: "sampling" | "stopping" | "output", name: string, value: unknown): void {
  if (part === "sampling") assign(SamplingParamsSchema, (request.sampling ??= create(SamplingParamsSchema)), name, value);
  if (part === "stopping") assign(StoppingParamsSchema, (request.stopping ??= create(StoppingParamsSchema)), name, value);
  if (part === "output") assign(OutputParamsSchema, (request.output ??= create(OutputParamsSchema)), name, value);
}

/** Those options, which are then left out of `left`. */
function take(left: Map<string, unknown>, names: readonly string[]): Map<string, unknown> {
  const taken = new Map<string, unknown>();
  for (const name of names) {
    if (!left.has(name)) continue;
    taken.set(name, left.get(name));
    left.delete(name);
  }
  return taken;
}

function onlyForMessages(name: string): TypeError {
  return new TypeError(`option ${name} is for messages only: give messages, or leave it out`);
}

/** Throw TypeError for an option that is not known. */
export function checkOptions(options: object, known: readonly string[]): void {
  for (const name of given(options).keys()) if (!known.includes(name)) throw unknownOption(name, known);
}

/** The error for an unknown option: another API's, or misspelt. */
export function unknownOption(name: string, known: readonly string[]): TypeError {
  const instead = Object.hasOwn(ELSEWHERE, name) ? ELSEWHERE[name] : undefined;
  if (instead !== undefined) return new TypeError(`option ${name} is not supported: ${instead}`);
  const near = nearest(name, known);
  return new TypeError(`unknown option ${name}${near === undefined ? "" : `; did you mean ${near}?`}`);
}
