// What clients have in common, over any transport.

/// <reference lib="esnext.disposable" preserve="true" />

import { create, type DescMethodUnary, type MessageInitShape, type MessageShape } from "@bufbuild/protobuf";
import { retryingRequest, timeoutOf } from "./asking.js";
import { CallBeginner } from "./call-attempt.js";
import { adapterFrom, adaptersFrom, modelsFrom, tokenizationFrom } from "./convert.js";
import { Cancelled, FailedPrecondition, fromLostCall, invalid, ProtocolError, type RingError } from "./errors.js";
import type {
  CallOptions,
  ClassifyOptions,
  EmbedOptions,
  Input,
  Options,
  Prompt,
  ScoreOptions,
  TokenizeOptions,
} from "./options.js";
import {
  type Classifications,
  CONCURRENT,
  classificationsFrom,
  classifyPieces,
  type Embeddings,
  embeddingsFrom,
  embedPieces,
  oneQuery,
  type Piece,
  placed,
  type Ranking,
  rankingFrom,
  readInputs,
  type Scores,
  scorePieces,
  scoresFrom,
} from "./pooling.js";
import { buildDetokenize, buildTokenize, CALL_OPTIONS, checkOptions } from "./request.js";
import type { Adapter, Generation, ListedAdapter, Model, Tokenization } from "./results.js";
import { DEFAULT_TIMEOUT, Deadline, now, RetryPolicy, RetryState } from "./retry.js";
import type { ServerPool } from "./server-pool.js";
import { Stream } from "./stream.js";
import { checkToken } from "./token.js";
import { InferenceService } from "./stubs/ringline/inference/v1/inference_pb.js";
import { inOrder, sleep, within } from "./waiting.js";

/** The names of `SharedOptions`. */
export const SHARED_OPTIONS = ["token", "metadata", "timeoutMs", "patienceMs", "retries", "retryOverloaded", "waitForReady"];

/** A bearer token, or a function that gives one and is called for each call. */
export type Token = string | (() => string | Promise<string>);

/** Options of every client. */
export interface SharedOptions {
  /** A bearer token. It is sent to other machines only over TLS. */
  readonly token?: Token | undefined;
  /** Sent with every call, such as the tenant. */
  readonly metadata?: Readonly<Record<string, string>> | undefined;
  /** Milliseconds for each call that gives none itself, over all its attempts. Default: an hour; null: no limit. */
  readonly timeoutMs?: number | null | undefined;
  /** Milliseconds for which a request looks for a server after each loss; 0: it fails at once. Default: 30,000. */
  readonly patienceMs?: number | undefined;
  /** A request fails when it has lost more servers than this with nothing delivered in between. Default: 3. */
  readonly retries?: number | undefined;
  /** Also retry requests refused as Overloaded, after the delay that the server asked for. */
  readonly retryOverloaded?: boolean | undefined;
  /** Until a server was reached, keep trying for `patienceMs` in place of failing at once. */
  readonly waitForReady?: boolean | undefined;
}

/**
 * What every client does. It hides the loss of a server: a request not yet admitted is sent again, and an admitted one is
 * resumed after the last delivered token, on another server or on the same one once it is back.
 */
export abstract class BaseClient {
  protected readonly pool: ServerPool;
  protected readonly policy: RetryPolicy;
  protected readonly timeoutMs: number | undefined;
  protected readonly metadata: () => Promise<Record<string, string>>;

  protected constructor(pool: ServerPool, options: SharedOptions) {
    const { patienceMs, retries, retryOverloaded, waitForReady } = options;
    this.policy = new RetryPolicy(patienceMs, retries, retryOverloaded, waitForReady);
    this.timeoutMs = timeoutOf(options, DEFAULT_TIMEOUT);
    new Deadline(this.timeoutMs); // checks it
    this.metadata = metadataOf(options);
    this.pool = pool;
  }

  /**
   * The whole answer. Rejects with a RingError unless every choice ended well; its `partial` holds what was delivered
   * before.
   *
   * @example
   * const answer = await client.generate("Once upon a time", { maxTokens: 32, temperature: 0 });
   * console.log(answer.text, answer.finishReason, answer.usage.completionTokens);
   */
  async generate<T = unknown>(prompt: Prompt, options: Options<T> = {}): Promise<Generation<T>> {
    return this.stream(prompt, options).result();
  }

  /**
   * The answer as it arrives. The request is sent when the first delta is awaited.
   *
   * @example
   * for await (const delta of client.stream([{ role: "user", content: "Hello!" }])) process.stdout.write(delta.text);
   */
  stream<T = unknown>(prompt: Prompt, options: Options<T> = {}): Stream<T> {
    const retrying = retryingRequest(prompt, options, { policy: this.policy, timeoutMs: this.timeoutMs });
    return new Stream(new CallBeginner(this.pool, this.metadata), retrying, options.signal);
  }

  /**
   * Vectors of one or many texts, or lists of token ids, in their order. A long list goes in several messages, a few at a
   * time. The error names the input at fault if it is one's.
   */
  async embed(inputs: Input | Iterable<Input>, options: EmbedOptions = {}): Promise<Embeddings> {
    const method = InferenceService.method.embed;
    return embeddingsFrom(await this.#each(method, embedPieces(inputs, options), options));
  }

  /**
   * How well each document matches the query, or its own one if there are as many: by a model that reads both together,
   * else by the cosine of their vectors.
   */
  async score(
    queries: Input | Iterable<Input>,
    documents: Input | Iterable<Input>,
    options: ScoreOptions = {},
  ): Promise<Scores> {
    const pieces = scorePieces(readInputs(queries, "queries"), readInputs(documents, "documents"), options);
    return scoresFrom(await this.#each(InferenceService.method.score, pieces, options));
  }

  /** The documents that match a query best, the best first; `topN` of them, or all. */
  async rerank(
    query: Input,
    documents: Iterable<Input>,
    options: ScoreOptions & { readonly topN?: number | undefined } = {},
  ): Promise<Ranking> {
    const { topN, ...others } = options;
    if (topN !== undefined && !(Number.isInteger(topN) && topN >= 1)) {
      throw invalid("topN", `${topN} is out of range: expected at least 1`);
    }
    const all = readInputs(documents, "documents");
    return rankingFrom(await this.score(oneQuery(query), all, others), all, topN);
  }

  /** Labels of one or many texts, or lists of token ids, in their order. */
  async classify(inputs: Input | Iterable<Input>, options: ClassifyOptions = {}): Promise<Classifications> {
    const method = InferenceService.method.classify;
    return classificationsFrom(await this.#each(method, classifyPieces(inputs, options), options));
  }

  /** The token ids of a text or a conversation, as `generate` would use them. */
  async tokenize(prompt: string | Extract<Prompt, readonly unknown[]>, options: TokenizeOptions = {}) {
    const request = buildTokenize(prompt, options);
    const answer = await this.#call(InferenceService.method.tokenize, request, options);
    return tokenizationFrom(answer) satisfies Tokenization;
  }

  /** The text of token ids, decoded as a whole. */
  async detokenize(
    tokenIds: ArrayLike<number>,
    options: CallOptions & { readonly skipSpecialTokens?: boolean | undefined } = {},
  ): Promise<string> {
    const request = buildDetokenize(tokenIds, options, ["skipSpecialTokens"]);
    return (await this.#call(InferenceService.method.detokenize, request, options)).text;
  }

  /** The bytes of each token, special ones included, within a text; they may be a part of a character. */
  async tokenPieces(tokenIds: ArrayLike<number>, options: CallOptions = {}): Promise<Uint8Array[]> {
    const request = buildDetokenize(tokenIds, options);
    request.pieces = true;
    const { pieces } = await this.#call(InferenceService.method.detokenize, request, options);
    if (pieces.length !== tokenIds.length) {
      const advice = "ask one whose model has the capability pieces";
      throw new FailedPrecondition(`the server cannot tell the bytes of tokens: ${advice}`);
    }
    return pieces;
  }

  /** The models that the server serves. */
  async listModels(options: Omit<CallOptions, "model"> = {}): Promise<Model[]> {
    checkOptions(options, CALL_OPTIONS);
    return modelsFrom(await this.#ask(InferenceService.method.listModels, {}, options));
  }

  /** The adapters of a model that this client may use, by name. */
  async listAdapters(options: CallOptions = {}): Promise<ListedAdapter[]> {
    checkOptions(options, [...CALL_OPTIONS, "model"]);
    const found: ListedAdapter[] = [];
    for (;;) {
      const request = { model: options.model ?? "", after: found.at(-1)?.name ?? "" };
      const page = await this.#ask(InferenceService.method.listAdapters, request, options);
      found.push(...adaptersFrom(page));
      if (!page.more || page.adapters.length === 0) return found;
    }
  }

  /** Make an adapter known at every engine of a model; `path`: a folder below the engines' `--lora-dir`. */
  async loadAdapter(
    name: string,
    path: string,
    options: CallOptions & { readonly replace?: boolean | undefined } = {},
  ): Promise<Adapter> {
    checkOptions(options, [...CALL_OPTIONS, "model", "replace"]);
    const { model, replace } = options;
    const request = { model: model ?? "", name, path, replace: replace ?? false };
    return known(await this.#ask(InferenceService.method.loadAdapter, request, options));
  }

  /** Forget the adapter of a name at every engine of a model; requests that have it keep it. */
  async unloadAdapter(name: string, options: CallOptions = {}): Promise<Adapter> {
    checkOptions(options, [...CALL_OPTIONS, "model"]);
    const request = { model: options.model ?? "", name };
    return known(await this.#ask(InferenceService.method.unloadAdapter, request, options));
  }

  /** End every running request and close the connections. */
  close(): void {
    this.pool.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }

  #ask<Method extends DescMethodUnary>(
    method: Method,
    request: MessageInitShape<Method["input"]>,
    options: CallOptions,
  ): Promise<MessageShape<Method["output"]>> {
    return this.#call(method, create(method.input, request) as MessageShape<Method["input"]>, options);
  }

  /** Each message of one call with its answer. */
  #each<Method extends DescMethodUnary>(
    method: Method,
    pieces: Iterable<Piece<MessageShape<Method["input"]>>>,
    options: CallOptions,
  ): Promise<(readonly [Piece<MessageShape<Method["input"]>>, MessageShape<Method["output"]>])[]> {
    const deadline = new Deadline(timeoutOf(options, this.timeoutMs));
    return inOrder(pieces, CONCURRENT, async (piece) => {
      try {
        return [piece, await this.#call(method, piece.request, options, deadline)] as const;
      } catch (error) {
        throw placed(error as RingError, method, piece);
      }
    });
  }

  async #call<Method extends DescMethodUnary>(
    method: Method,
    request: MessageShape<Method["input"]>,
    options: CallOptions,
    deadline = new Deadline(timeoutOf(options, this.timeoutMs)),
  ): Promise<MessageShape<Method["output"]>> {
    const { signal } = options;
    const began = now();
    const state = new RetryState(this.policy, deadline);
    for (;;) {
      if (signal?.aborted) throw new Cancelled("the request was cancelled", { cause: signal.reason });
      const metadata = await within(this.metadata(), signal, deadline, "there was a token");
      const server = this.pool.choose();
      const used = this.pool.use(server);
      let error: RingError;
      try {
        const timeoutMs = deadline.remaining();
        const answer = await used.connection.unary(method, request, { timeoutMs, metadata, signal });
        this.pool.succeeded(server);
        return answer;
      } catch (failure) {
        if (signal?.aborted) continue;
        if (this.pool.closed) throw new Cancelled("the client was closed");
        error = this.pool.attemptFailed(server, fromLostCall(failure as RingError), began);
      } finally {
        this.pool.release(used);
      }
      await sleep(state.delay(error, this.pool.anyAvailable()), signal ?? NEVER);
    }
  }
}

const NEVER = new AbortController().signal;
const METADATA_KEY = /^[a-z0-9_.-]+$/;
const METADATA_VALUE = /^[\x20-\x7e]*$/;

function known({ adapter }: { adapter?: Parameters<typeof adapterFrom>[0] | undefined }): Adapter {
  if (adapter === undefined) throw new ProtocolError("the server broke the protocol: it names no adapter");
  return adapterFrom(adapter);
}

/** The headers of each call, the bearer token included. */
function metadataOf({ metadata, token }: SharedOptions): () => Promise<Record<string, string>> {
  const pairs = Object.fromEntries(Object.entries(metadata ?? {}).map(([key, value]) => [key.toLowerCase(), value]));
  for (const [key, value] of Object.entries(pairs)) {
    if (!METADATA_KEY.test(key) || key.endsWith("-bin")) {
      throw invalid("metadata", `${JSON.stringify(key)} is no name: expected letters, digits, _, . and -, and no -bin at its end`);
    }
    if (typeof value !== "string" || !METADATA_VALUE.test(value)) {
      throw invalid("metadata", `${key}: expected a text of printable ASCII characters`);
    }
  }
  if (token === undefined) return async () => pairs;
  if (typeof token !== "function") checkToken(token, "token");
  return async () => {
    const text = typeof token === "function" ? checkToken(await token(), "token") : token;
    return { ...pairs, authorization: `Bearer ${text}` };
  };
}
