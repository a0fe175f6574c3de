// What the client gives back: the events of a stream, and whole answers.

import { ParseError, type RingError } from "./errors.js";
import type { Message, Options } from "./options.js";

/** Why a choice ended. */
export type FinishReason = "stop" | "length" | "cancelled" | "deadline" | "error";

/** Log probability of one token: log-softmax of the raw logits, before penalties and temperature. */
export interface TokenLogprob {
  readonly logprob: number;
  /** Rank in the vocabulary; 1 is the most likely token. */
  readonly rank: number;
  /** The most likely tokens, in descending order; as many as `logprobs` asked for. */
  readonly top: readonly { readonly tokenId: number; readonly logprob: number }[];
}

/** Token counts of a request. They are exact: every output token counted was delivered. */
export interface Usage {
  readonly promptTokens: number;
  /** Prompt tokens found in the prefix cache. */
  readonly cachedTokens: number;
  /** Sum over all choices. */
  readonly completionTokens: number;
  /** The completion tokens that are reasoning or its markers; counted only if the request asked for parts. */
  readonly reasoningTokens: number;
  /** The prompt tokens that stand for pictures. */
  readonly mediaTokens: number;
  /** The completion tokens that an engine had guessed ahead. */
  readonly acceptedDraftTokens: number;
  /** Tokens that it had guessed wrong. */
  readonly rejectedDraftTokens: number;
}

/** A model's fine-tuning, kept apart from its weights. */
export interface Adapter {
  readonly name: string;
  /** Of its contents. A name may come to stand for another one. */
  readonly digest: string;
}

/** The request as the server admitted it. */
export interface Admitted {
  readonly type: "admitted";
  readonly model: string;
  readonly promptTokens: number;
  /** Undefined unless `returnPromptTokenIds`. */
  readonly promptTokenIds: readonly number[] | undefined;
  /** Every option with its resolved value, the seed included; sending them again repeats the request. */
  readonly options: Options;
  /** The request's id in the logs and traces of the first server. */
  readonly serverRequestId: string;
  /** What is computed beside the model; undefined: nothing. */
  readonly adapter: Adapter | undefined;
}

/** Progress of the prefill, in prompt tokens. */
export interface Prefill {
  readonly type: "prefill";
  readonly computedTokens: number;
  readonly cachedTokens: number;
}

/** Log probabilities of prompt tokens from index 1 on; a long prompt's come in parts. */
export interface PromptLogprobs {
  readonly type: "promptLogprobs";
  /** Number of entries in earlier parts. */
  readonly offset: number;
  readonly logprobs: readonly TokenLogprob[];
}

/** A piece of the answer itself. */
export interface Content {
  readonly type: "content";
  readonly text: string;
  /** Positions, in the choice, of the tokens of `text`; only with `parse: { contentTokens: true }`. */
  readonly tokens: readonly number[];
}

/** A piece of the model's reasoning, without its markers. */
export interface Reasoning {
  readonly type: "reasoning";
  readonly text: string;
}

/** A piece of a tool call. */
export interface ToolCallPiece {
  readonly type: "toolCall";
  /** Number of the call in its choice, from 0. */
  readonly index: number;
  /** Like `name`, empty except in the call's first piece. */
  readonly id: string;
  readonly name: string;
  /** The next piece of the arguments' JSON text. */
  readonly arguments: string;
}

/** A piece of an answer's typed parts. */
export type Part = Content | Reasoning | ToolCallPiece;

/** Tokens of one choice and the text they complete. */
export interface Delta {
  readonly type: "delta";
  readonly choice: number;
  /** Output position of the first token: the number of the choice's ids delivered before. */
  readonly position: number;
  readonly text: string;
  readonly tokenIds: readonly number[];
  /** One per token; undefined unless asked for. */
  readonly logprobs: readonly TokenLogprob[] | undefined;
  /** Additions to the content, the reasoning and the tool calls, if the request asked for parts. */
  readonly parts: readonly Part[];
}

/** The end of a choice. */
export interface Finished {
  readonly type: "finished";
  readonly choice: number;
  readonly reason: FinishReason;
  /** The stop token's id or the stop string, if one ended the choice. */
  readonly stop: number | string | undefined;
  /** Set unless the reason is stop or length. */
  readonly error: RingError | undefined;
  readonly reasoningTokens: number;
  /** Undefined unless `beamSearch` was given. */
  readonly beamScore: number | undefined;
}

/** An engine starts to compute the request; sent again after every move to another engine. */
export interface Started {
  readonly type: "started";
  /** Equal for equal models, weights included. */
  readonly modelDigest: string;
  /** Equal values mean that equal requests get bit-identical tokens. */
  readonly numerics: string;
  /** Whether the tokens are the same as without the move. */
  readonly identical: boolean;
  /** Why the request moved; empty at its first start. */
  readonly reason: string;
}

/** The connection or the server was lost, and the client resumed the request. */
export interface Resumed {
  readonly type: "resumed";
  readonly reason: string;
}

/** What happens to a request. */
export type Event = Admitted | Prefill | PromptLogprobs | Delta | Finished | Started | Resumed;

/** A call of a tool by the model. */
export class ToolCall {
  /** JSON text of an object, as the model wrote it. */
  readonly arguments: string;

  /** `id`: the `toolCallId` of the message that answers this call. */
  constructor(
    readonly id: string,
    readonly name: string,
    text: string,
  ) {
    this.arguments = text;
  }

  /** The arguments. Throws ParseError if they are not a JSON object: cut off, or not held to a schema. */
  get parsed(): Record<string, unknown> {
    let value: unknown;
    try {
      value = JSON.parse(this.arguments);
    } catch (error) {
      throw new ParseError(`the arguments of ${this.name} are not JSON: ${message(error)}`, { cause: error });
    }
    if (typeof value !== "object" || value === null || Array.isArray(value)) {
      throw new ParseError(`the arguments of ${this.name} are not a JSON object`);
    }
    return value as Record<string, unknown>;
  }
}

/** What of a choice was delivered. */
export interface ChoiceFields {
  readonly index: number;
  readonly text: string;
  readonly tokenIds: readonly number[];
  /** Undefined: the choice did not end. */
  readonly finishReason: FinishReason | undefined;
  /** The stop token's id, or the stop string, that ended the choice, if any. */
  readonly stop: number | string | undefined;
  /** One for each token. */
  readonly logprobs: readonly TokenLogprob[] | undefined;
  /** The answer without reasoning and tool calls; the whole text if the request did not ask for parts. */
  readonly content: string;
  /** Undefined: the answer has no reasoning, or the request did not ask for parts. */
  readonly reasoning: string | undefined;
  readonly toolCalls: readonly ToolCall[];
  /** Undefined unless `beamSearch` was given. */
  readonly beamScore: number | undefined;
}

/** Parses the content of an answer. */
export type Reader<T> = (content: string) => T;

/** One choice, complete or as far as delivered. */
export class Choice<T = unknown> implements ChoiceFields {
  readonly index!: number;
  readonly text!: string;
  readonly tokenIds!: readonly number[];
  readonly finishReason!: FinishReason | undefined;
  readonly stop!: number | string | undefined;
  readonly logprobs!: readonly TokenLogprob[] | undefined;
  readonly content!: string;
  readonly reasoning!: string | undefined;
  readonly toolCalls!: readonly ToolCall[];
  readonly beamScore!: number | undefined;
  readonly #read: Reader<T> | undefined;

  /** `read`: undefined if the request gave neither `jsonSchema` nor `jsonObject`. */
  constructor(fields: ChoiceFields, read?: Reader<T>) {
    Object.assign(this, fields);
    this.#read = read;
  }

  /**
   * The content parsed as JSON, and by the schema object if one was given; undefined if the request asked for no JSON.
   * Throws ParseError for an incomplete answer, such as one that `maxTokens` cut, and for one that is only tool calls.
   */
  get parsed(): T {
    if (this.#read === undefined) return undefined as T; // T is unknown: without a schema object, nothing says more
    if (this.toolCalls.length > 0 && this.content === "") {
      throw new ParseError(`choice ${this.index} has no content, only tool calls: toolCalls has them`);
    }
    try {
      return this.#read(this.content);
    } catch (error) {
      const where = `choice ${this.index}`;
      if (this.finishReason === "stop") {
        throw new ParseError(`${where} cannot be read: ${message(error)}`, { cause: error });
      }
      const cut = `was cut off after ${this.tokenIds.length} tokens (${this.finishReason ?? "its stream was lost"})`;
      throw new ParseError(`${where} ${cut}, so its JSON is not whole; content has what there is`);
    }
  }

  /** The choice as an assistant's message, to continue the conversation. */
  message(): Message {
    const toolCalls = this.toolCalls.map(({ id, name, arguments: text }) => ({ id, name, arguments: text }));
    return {
      role: "assistant",
      content: this.content,
      ...(this.reasoning === undefined ? {} : { reasoning: this.reasoning }),
      ...(toolCalls.length > 0 ? { toolCalls } : {}),
    };
  }
}

/** A whole answer: every choice ended with stop or length. */
export class Generation<T = unknown> {
  constructor(
    readonly choices: readonly Choice<T>[],
    readonly usage: Usage,
    readonly request: Admitted,
    /** Log probabilities of the prompt tokens from index 1 on; undefined unless asked for. */
    readonly promptLogprobs: readonly TokenLogprob[] | undefined,
    /** How often the client resumed the request. */
    readonly resumed: number,
  ) {}

  /** The first choice's text. */
  get text(): string {
    return this.#first.text;
  }

  /** The first choice's token ids. */
  get tokenIds(): readonly number[] {
    return this.#first.tokenIds;
  }

  /** Why the first choice ended. */
  get finishReason(): FinishReason | undefined {
    return this.#first.finishReason;
  }

  /** The stop token's id, or the stop string, that ended the first choice, if any. */
  get stop(): number | string | undefined {
    return this.#first.stop;
  }

  /** The first choice's log probabilities, one per token; undefined unless asked for. */
  get logprobs(): readonly TokenLogprob[] | undefined {
    return this.#first.logprobs;
  }

  /** The first choice's text without reasoning and tool calls. */
  get content(): string {
    return this.#first.content;
  }

  /** The first choice's reasoning, if it has any. */
  get reasoning(): string | undefined {
    return this.#first.reasoning;
  }

  /** The first choice's tool calls. */
  get toolCalls(): readonly ToolCall[] {
    return this.#first.toolCalls;
  }

  /** The first choice's content, parsed; see `Choice.parsed`. */
  get parsed(): T {
    return this.#first.parsed;
  }

  /** The first choice as an assistant's message, to continue the conversation. */
  message(): Message {
    return this.#first.message();
  }

  get #first(): Choice<T> {
    const [first] = this.choices;
    if (first === undefined) throw new RangeError("the answer has no choice");
    return first;
  }
}

/** What had been delivered when a request failed. */
export interface Partial {
  readonly choices: readonly Choice[];
  readonly request: Admitted;
  /** Undefined: the stream was lost before the server sent it. */
  readonly usage: Usage | undefined;
}

/** The token ids of a text or chat. */
export interface Tokenization {
  readonly tokenIds: readonly number[];
  /** The chat as the template rendered it. */
  readonly rendered: string;
  /** The model's context length, in tokens. */
  readonly maxModelLen: number;
}

/** What a model computes in place of tokens. */
export interface Pooling {
  /** Of embed, token_embed, classify, token_classify. */
  readonly tasks: readonly string[];
  /** Numbers of a vector; 0: it makes none. */
  readonly dimensions: number;
  readonly isMatryoshka: boolean;
  readonly matryoshkaDimensions: readonly number[];
  /** Whether vectors have a length of 1 by default. */
  readonly normalizes: boolean;
  readonly labels: readonly string[];
  /** Texts that `promptName` puts before an input, by their names. */
  readonly prompts: Readonly<Record<string, string>>;
  readonly defaultPrompt: string;
  /** Whether it reads a query and a document together. */
  readonly scoresPairs: boolean;
}

/** A served model. */
export interface Model {
  readonly name: string;
  readonly architecture: string;
  readonly vocabSize: number;
  /** Prompt and output together, in tokens. */
  readonly maxModelLen: number;
  readonly eosTokenIds: readonly number[];
  readonly hasChatTemplate: boolean;
  readonly tokenizerDigest: string;
  readonly modelDigest: string;
  /** Names that `requires` accepts. */
  readonly capabilities: ReadonlySet<string>;
  /** What a request gets that gives no sampling options, by their names. */
  readonly defaultSampling: Readonly<Record<string, number>>;
  /** Numbers that the weights consist of; undefined if the server does not tell. */
  readonly numParameters: number | undefined;
  /** Undefined: the model generates tokens. */
  readonly pooling: Pooling | undefined;
  /** Those that requests may name now. */
  readonly adapters: readonly Adapter[];
}

/** An adapter of a model, and how many of the server's engines have it. */
export interface ListedAdapter extends Adapter {
  /** Engines at which the name stands for it; 0: running requests keep it. */
  readonly engines: number;
  /** Engines that have its weights in memory. */
  readonly loadedEngines: number;
}

function message(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
