// Vectors, scores and labels: the requests as messages of bounded size, and one result of their answers.

import { clone, create, type DescMethodUnary } from "@bufbuild/protobuf";
import { adapterFrom, usageFrom } from "./convert.js";
import { FailedPrecondition, InvalidRequest, invalid, ProtocolError, type RingError } from "./errors.js";
import { assign, given, nameOf } from "./fields.js";
import type { ClassifyOptions, EmbedOptions, Input, ScoreOptions } from "./options.js";
import { unknownOption } from "./request.js";
import type { Adapter, Usage } from "./results.js";
import {
  type ClassifyRequest,
  ClassifyRequestSchema,
  type ClassifyResponse,
  type EmbedRequest,
  EmbedRequestSchema,
  type EmbedResponse,
  type PoolingInput,
  PoolingInputSchema,
  type PoolingOptions,
  PoolingOptionsSchema,
  type PoolingReport as ReportMessage,
  type ScoreRequest,
  ScoreRequestSchema,
  type ScoreResponse,
  Truncation,
} from "./stubs/ringline/inference/v1/inference_pb.js";
import { TokenIdsSchema } from "./stubs/ringline/types/v1/sampling_pb.js";

/** Messages of one call that are under way at once. */
export const CONCURRENT = 4;
/** Of a message; the contract allows 2048, and with fewer a lost server costs less. */
const MOST_INPUTS = 512;
/** Of the texts and ids of a message, but for one that is larger alone; a server takes 4 MiB by default. */
const MOST_BYTES = 1 << 20;
/** The same with a result for each token: a token has a byte or more, and its result thousands. */
const MOST_BYTES_PER_TOKEN = 1 << 13;
/** Most bytes of a token id below 2^21 in a message. */
const ID_BYTES = 3;
const COMMON = [
  "model",
  "adapter",
  "truncate",
  "maxInputTokens",
  "addSpecialTokens",
  "priority",
  "cacheSalt",
  "requires",
  "traceparent",
];
const OWN = {
  embed: ["dimensions", "normalize", "perToken", "promptName"],
  score: ["activation", "instruction"],
  classify: ["activation", "perToken"],
};
const PLACE = /\b(inputs|documents|queries)\[(\d+)\]/g;

/** What a result tells about its request. */
export interface PoolingReport {
  readonly usage: Usage;
  /** Tokens of each input, or pair. */
  readonly inputTokens: readonly number[];
  readonly model: string;
  /** Equal for equal models; empty if several with different ones computed the result. */
  readonly modelDigest: string;
  /** Equal values mean that equal inputs get bit-identical results; empty if there were several. */
  readonly numerics: string;
  /** The ids in the server's logs and traces, one for each message that was sent. */
  readonly serverRequestIds: readonly string[];
  /** Its digest is empty if several computed the result, because the adapter was replaced meanwhile. */
  readonly adapter: Adapter | undefined;
}

/** Rows of numbers, one for each input, or for each of its tokens. */
abstract class Rows {
  readonly #ends: readonly number[] | undefined;

  constructor(
    readonly report: PoolingReport,
    /** All rows one after the other. */
    readonly values: Float32Array,
    /** With `perToken`: rows of each input. */
    readonly counts: readonly number[] | undefined,
    protected readonly width: number,
  ) {
    let end = 0;
    this.#ends = counts?.map((count) => (end += count));
  }

  /** Number of inputs. */
  get length(): number {
    return this.counts?.length ?? this.values.length / this.width;
  }

  get usage(): Usage {
    return this.report.usage;
  }

  /** The numbers of an input, without a copy. */
  protected numbersOf(index: number): Float32Array {
    if (!Number.isInteger(index) || index < 0 || index >= this.length) {
      throw new RangeError(`${index}: there are ${this.length} inputs`);
    }
    const begin = this.#ends === undefined ? index : (this.#ends[index - 1] ?? 0);
    const end = this.#ends === undefined ? index + 1 : (this.#ends[index] ?? 0);
    return this.values.subarray(begin * this.width, end * this.width);
  }
}

/** Vectors in the order of the inputs: `embeddings.at(0)`, `embeddings.length`, `for (const vector of embeddings)`. */
export class Embeddings extends Rows implements Iterable<Float32Array> {
  /** Numbers of a vector. */
  get dimensions(): number {
    return this.width;
  }

  /** An input's vector; with `perToken`, its vectors one after the other. They share this object's memory. */
  at(index: number): Float32Array {
    return this.numbersOf(index);
  }

  *[Symbol.iterator](): Iterator<Float32Array> {
    for (let index = 0; index < this.length; index++) yield this.at(index);
  }
}

/** The labels of an input or a token. */
export class Classification {
  /** `values`: one for each label: probabilities, unless `activation` is false. */
  constructor(
    readonly labels: readonly string[],
    readonly values: readonly number[],
  ) {}

  /** The label with the largest value. */
  get label(): string {
    return this.labels[this.#best] ?? "";
  }

  /** The largest value. */
  get value(): number {
    return this.values[this.#best] ?? NaN;
  }

  get #best(): number {
    return this.values.reduce((best, value, index) => (value > (this.values[best] ?? -Infinity) ? index : best), 0);
  }
}

/** Labels in the order of the inputs: `answer.at(0).label`, `answer.length`, `for (const one of answer)`. */
export class Classifications extends Rows implements Iterable<Classification> {
  constructor(
    report: PoolingReport,
    values: Float32Array,
    counts: readonly number[] | undefined,
    readonly labels: readonly string[],
  ) {
    super(report, values, counts, labels.length);
  }

  /** An input's labels. With `perToken` it has many: then it throws; see `tokens`. */
  at(index: number): Classification {
    if (this.counts !== undefined) {
      throw new TypeError("with perToken, an input has labels for each token: call tokens(index)");
    }
    return this.tokens(index)[0] ?? new Classification(this.labels, []);
  }

  /** The labels of each of an input's tokens; without `perToken`, those of the input alone. */
  tokens(index: number): Classification[] {
    const numbers = this.numbersOf(index);
    return Array.from({ length: numbers.length / this.width }, (_, row) => {
      const values = Array.from(numbers.subarray(row * this.width, (row + 1) * this.width));
      return new Classification(this.labels, values);
    });
  }

  *[Symbol.iterator](): Iterator<Classification> {
    for (let index = 0; index < this.length; index++) yield this.at(index);
  }
}

/** How well each document matches its query, in the order of the documents. */
export class Scores implements Iterable<number> {
  /** `values`: the higher, the better. */
  constructor(
    readonly report: PoolingReport,
    readonly values: readonly number[],
  ) {}

  get length(): number {
    return this.values.length;
  }

  get usage(): Usage {
    return this.report.usage;
  }

  [Symbol.iterator](): Iterator<number> {
    return this.values[Symbol.iterator]();
  }
}

/** A document in its place. */
export interface Ranked {
  /** Of the document, as given. */
  readonly index: number;
  readonly score: number;
  readonly document: Input;
}

/** The documents that match a query, the best first. */
export class Ranking implements Iterable<Ranked> {
  /** `values`: of equal scores, the earlier document comes first. */
  constructor(
    readonly report: PoolingReport,
    readonly values: readonly Ranked[],
  ) {}

  get length(): number {
    return this.values.length;
  }

  get usage(): Usage {
    return this.report.usage;
  }

  [Symbol.iterator](): Iterator<Ranked> {
    return this.values[Symbol.iterator]();
  }
}

/** A message with some of a request's inputs. */
export interface Piece<Request> {
  readonly request: Request;
  /** By the name of a list of inputs: the index, among all given, of the first one in the message. */
  readonly places: Readonly<Record<string, number>>;
  /** Number of results. */
  readonly inputs: number;
}

/** The messages of `embed`. Options and inputs of a wrong type are refused before the first message. */
export function embedPieces(inputs: Input | Iterable<Input>, options: EmbedOptions): Iterable<Piece<EmbedRequest>> {
  const all = readInputs(inputs, "inputs");
  const common = create(EmbedRequestSchema, { options: commonOf("embed", options) });
  assignOwn("embed", options, (name, value) => assign(EmbedRequestSchema, common, name, value));
  return piecesOf(all, options.perToken ?? false, (messages) =>
    Object.assign(clone(EmbedRequestSchema, common), { inputs: messages }),
  );
}

/** The messages of `classify`. */
export function classifyPieces(
  inputs: Input | Iterable<Input>,
  options: ClassifyOptions,
): Iterable<Piece<ClassifyRequest>> {
  const all = readInputs(inputs, "inputs");
  const common = create(ClassifyRequestSchema, { options: commonOf("classify", options) });
  assignOwn("classify", options, (name, value) => assign(ClassifyRequestSchema, common, name, value));
  return piecesOf(all, options.perToken ?? false, (messages) =>
    Object.assign(clone(ClassifyRequestSchema, common), { inputs: messages }),
  );
}

/** The messages of `score`. One query goes with every message. */
export function* scorePieces(
  queries: readonly Input[],
  documents: readonly Input[],
  options: ScoreOptions,
): Iterable<Piece<ScoreRequest>> {
  if (queries.length !== 1 && queries.length !== documents.length) {
    const problem = `expected 1, or as many as documents, of which there are ${documents.length}`;
    throw invalid("queries", `${queries.length}: ${problem}`);
  }
  const common = create(ScoreRequestSchema, { options: commonOf("score", options) });
  assignOwn("score", options, (name, value) => assign(ScoreRequestSchema, common, name, value));
  const paired = queries.length > 1;
  const sizes = documents.map((one, index) => sizeOf(one) + (paired ? sizeOf(queries[index] ?? "") : 0));
  for (const [begin, end] of ranges(sizes, MOST_BYTES)) {
    const request = clone(ScoreRequestSchema, common);
    const [first, last] = paired ? [begin, end] : [0, 1];
    request.queries = inputMessages(queries, first, last, "queries");
    request.documents = inputMessages(documents, begin, end, "documents");
    yield { request, places: { queries: first, documents: begin }, inputs: end - begin };
  }
}

/** Inputs as a list: a text, or a list of token ids, is one. */
export function readInputs(inputs: Input | Iterable<Input>, name: string): Input[] {
  if (typeof inputs === "string") return [inputs];
  const all = listed(inputs, "a text, a list of token ids, or a list of these", name);
  if (all.length === 0) throw invalid(name, "empty: expected at least one input");
  if (typeof all[0] === "number") return [all as number[]];
  return all.map((one, index) =>
    typeof one === "string" ? one : (listed(one, "a text or a list of token ids", `${name}[${index}]`) as number[]),
  );
}

/** The query of a ranking. */
export function oneQuery(query: Input): Input[] {
  const queries = readInputs(query, "query");
  if (queries.length > 1) throw invalid("query", `${queries.length} of them: expected one; score() compares pairs`);
  return queries;
}

/** `error` with the places of inputs among all that were given. */
export function placed(error: RingError, method: DescMethodUnary, { places }: Piece<unknown>): RingError {
  if (error.code === "UNIMPLEMENTED") {
    return new FailedPrecondition(
      `the server is too old to know ${method.name}: it makes no vectors, scores or labels`,
    );
  }
  const shifted = (text: string) =>
    text.replace(PLACE, (_, name: string, index: string) => `${name}[${Number(index) + (places[name] ?? 0)}]`);
  error.message = shifted(error.message).replace("options.truncation cuts", "truncate cuts");
  if (error instanceof InvalidRequest && error.field !== undefined) error.field = shifted(error.field);
  return error;
}

/** One result of the answers to messages, in order. Throws ProtocolError if they do not fit together. */
export function embeddingsFrom(answers: readonly (readonly [Piece<EmbedRequest>, EmbedResponse])[]): Embeddings {
  const joined = join(answers, (answer) => answer.dimensions);
  return new Embeddings(joined.report, joined.values, joined.counts, joined.width);
}

/** See `embeddingsFrom`. */
export function classificationsFrom(
  answers: readonly (readonly [Piece<ClassifyRequest>, ClassifyResponse])[],
): Classifications {
  const joined = join(answers, (answer) => answer.labels.length);
  return new Classifications(joined.report, joined.values, joined.counts, answers.at(-1)?.[1].labels ?? []);
}

/** See `embeddingsFrom`. */
export function scoresFrom(answers: readonly (readonly [Piece<ScoreRequest>, ScoreResponse])[]): Scores {
  for (const [piece, { scores }] of answers) {
    if (scores.length !== piece.inputs) {
      throw new ProtocolError(`the server sent ${scores.length} scores of ${piece.inputs} documents`);
    }
  }
  const report = reportOf(answers.map(([, answer]) => answer.report));
  return new Scores(
    report,
    answers.flatMap(([, { scores }]) => scores),
  );
}

/** The best `topN` documents; undefined: all. */
export function rankingFrom(scores: Scores, documents: readonly Input[], topN: number | undefined): Ranking {
  const ranked = documents.map((document, index) => ({ index, score: scores.values[index] ?? NaN, document }));
  ranked.sort((one, other) => other.score - one.score); // stable
  return new Ranking(scores.report, ranked.slice(0, topN));
}

function listed(value: unknown, wanted: string, place: string): unknown[] {
  const iterable = typeof value === "object" && value !== null && Symbol.iterator in value;
  if (!iterable) throw new TypeError(`${place}: expected ${wanted}, got ${nameOf(value)}`);
  return [...(value as Iterable<unknown>)];
}

function* piecesOf<Request>(
  inputs: readonly Input[],
  perToken: boolean,
  build: (messages: PoolingInput[]) => Request,
): Iterable<Piece<Request>> {
  for (const [begin, end] of ranges(inputs.map(sizeOf), perToken ? MOST_BYTES_PER_TOKEN : MOST_BYTES)) {
    const request = build(inputMessages(inputs, begin, end, "inputs"));
    yield { request, places: { inputs: begin }, inputs: end - begin };
  }
}

/** Runs of inputs for a message each, by the first index and the one after the last. */
function* ranges(sizes: readonly number[], most: number): Iterable<[number, number]> {
  let begin = 0;
  let filled = 0;
  for (const [index, size] of sizes.entries()) {
    if (index > begin && (index - begin >= MOST_INPUTS || filled + size > most)) {
      yield [begin, index];
      begin = index;
      filled = 0;
    }
    filled += size;
  }
  yield [begin, sizes.length];
}

/** At most the bytes of an input in a message. */
function sizeOf(one: Input): number {
  if (typeof one !== "string") return ID_BYTES * one.length;
  return /^[\0-\x7f]*$/.test(one) ? one.length : 3 * one.length;
}

function inputMessages(inputs: readonly Input[], begin: number, end: number, name: string): PoolingInput[] {
  return inputs.slice(begin, end).map((one, index) => {
    const message = create(PoolingInputSchema);
    const place = `${name}[${begin + index}]`;
    if (typeof one === "string") {
      assign(PoolingInputSchema, message, "text", one, place);
    } else {
      const ids = create(TokenIdsSchema);
      assign(TokenIdsSchema, ids, "ids", one, place);
      message.input = { case: "tokenIds", value: ids };
    }
    return message;
  });
}

/** The options that all three have in common. Throws TypeError for an option that the call does not have. */
function commonOf(call: keyof typeof OWN, options: object): PoolingOptions {
  const message = create(PoolingOptionsSchema);
  for (const [name, value] of given(options)) {
    if (name === "timeoutMs" || name === "signal" || name === "model" || OWN[call].includes(name)) continue;
    if (!COMMON.includes(name)) throw unknownOption(name, [...COMMON, ...OWN[call], "timeoutMs", "signal"]);
    if (name === "truncate") message.truncation = truncationOf(value);
    else assign(PoolingOptionsSchema, message, name, value);
  }
  if (message.adapter !== "" && !message.requires.includes("adapters")) message.requires.push("adapters");
  return message;
}

function truncationOf(value: unknown): Truncation {
  if (value === false) return Truncation.NONE;
  if (value === true || value === "end") return Truncation.END;
  if (value === "start") return Truncation.START;
  throw invalid("truncate", `${String(value)}: expected true, false, end or start`);
}

function assignOwn(call: keyof typeof OWN, options: object, set: (name: string, value: unknown) => void): void {
  for (const [name, value] of given(options)) if (name === "model" || OWN[call].includes(name)) set(name, value);
}

interface Values {
  /** Little-endian float32. */
  readonly values: Uint8Array;
  readonly counts: readonly number[];
  readonly report?: ReportMessage | undefined;
}

function join<Answer extends Values>(
  answers: readonly (readonly [Piece<unknown>, Answer])[],
  widthOf: (answer: Answer) => number,
): { report: PoolingReport; values: Float32Array; counts: readonly number[] | undefined; width: number } {
  const width = answers[0] === undefined ? 0 : widthOf(answers[0][1]);
  for (const [{ inputs }, answer] of answers) {
    const { counts, values } = answer;
    const rows = counts.length > 0 ? counts.reduce((sum, count) => sum + count, 0) : inputs;
    const fits = counts.length === 0 || counts.length === inputs;
    if (width === 0 || widthOf(answer) !== width || values.length !== 4 * width * rows || !fits) {
      const what = `${values.length} bytes of values for ${rows} rows of ${widthOf(answer)} numbers of ${inputs} inputs`;
      throw new ProtocolError(`the server sent ${what}`);
    }
  }
  const total = answers.reduce((sum, [, { values }]) => sum + values.length, 0);
  const values = new Float32Array(total / 4);
  let place = 0;
  for (const [, answer] of answers) {
    const view = new DataView(answer.values.buffer, answer.values.byteOffset, answer.values.byteLength);
    for (let at = 0; at < view.byteLength; at += 4) values[place++] = view.getFloat32(at, true);
  }
  const counts = answers.flatMap(([, answer]) => answer.counts);
  const report = reportOf(answers.map(([, answer]) => answer.report));
  return { report, values, counts: counts.length > 0 ? counts : undefined, width };
}

function reportOf(reports: readonly (ReportMessage | undefined)[]): PoolingReport {
  const known = reports.filter((report) => report !== undefined);
  const common = (values: readonly (string | undefined)[]) => (new Set(values).size === 1 ? (values[0] ?? "") : "");
  const usages = known.map((report) => usageFrom(report.usage));
  const usage = usages.reduce((sum, each) => {
    const added = Object.entries(sum).map(([name, value]) => [name, value + each[name as keyof Usage]]);
    return Object.fromEntries(added) as Usage;
  }, usageFrom(undefined));
  const adapter = known[0]?.adapter;
  const digest = common(known.map((report) => report.adapter?.digest));
  return {
    usage,
    inputTokens: known.flatMap((report) => report.inputTokens),
    model: known[0]?.model ?? "",
    modelDigest: common(known.map((report) => report.modelDigest)),
    numerics: common(known.map((report) => report.numerics)),
    serverRequestIds: known.map((report) => report.serverRequestId),
    adapter: adapter === undefined ? undefined : { ...adapterFrom(adapter), digest },
  };
}
