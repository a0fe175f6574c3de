// What callers give: prompts, messages and options. An option is a field of the contract in camelCase.

/** A JSON Schema, as an object or as JSON text. */
export type JsonSchema = { readonly [keyword: string]: unknown } | boolean | string;

/**
 * A schema object that says its JSON Schema and validates values: the Standard Schema of zod 4.2 and later, and of other
 * libraries that have `~standard.jsonSchema`.
 */
export interface SchemaObject<T = unknown> {
  readonly "~standard": {
    readonly version: 1;
    readonly vendor: string;
    readonly validate: (value: unknown) => ValidationResult<T> | Promise<ValidationResult<T>>;
    readonly jsonSchema: { readonly input: (options: { readonly target: "draft-2020-12" }) => Record<string, unknown> };
    readonly types?: { readonly input: unknown; readonly output: T } | undefined;
  };
}

/** What a schema object says of a value. */
export type ValidationResult<T> =
  | { readonly value: T; readonly issues?: undefined }
  | { readonly issues: readonly { readonly message: string; readonly path?: readonly unknown[] | undefined }[] };

/** Token ids in place of a text. */
export interface TokenIds {
  readonly tokenIds: ArrayLike<number>;
}

/** A text, a conversation that the model's chat template renders, or token ids. */
export type Prompt = string | readonly Message[] | TokenIds;

/** A picture: the bytes of a file such as a PNG or JPEG, or a `data:` URL in base64. */
export type Picture = Uint8Array | ArrayBuffer;

/** A text among the parts of a message. */
export interface TextPart {
  readonly type: "text";
  readonly text: string;
}

/** A picture among the parts of a message. */
export interface ImagePart {
  readonly type: "image";
  /** A text is a `data:` URL. */
  readonly image: Picture | string;
  /** The type that the file must have, such as image/png. Default: any that the server takes. */
  readonly mimeType?: string | undefined;
}

/** A picture in OpenAI's form. */
export interface ImageUrlPart {
  readonly type: "image_url";
  /** A `data:` URL in base64. */
  readonly image_url: string | { readonly url: string; readonly detail?: string | undefined };
}

/** A part of a message's content. */
export type ContentPart = string | TextPart | ImagePart | ImageUrlPart | Picture;

/** A tool call in an assistant's message; OpenAI's form is accepted too. */
export type MessageToolCall =
  | { readonly id?: string; readonly type?: string; readonly name: string; readonly arguments?: ToolArguments }
  | {
      readonly id?: string;
      readonly type?: string;
      readonly function: { readonly name: string; readonly arguments?: ToolArguments };
    };

/** A JSON object, as text or as an object. */
export type ToolArguments = string | { readonly [name: string]: unknown };

/** One message of a conversation. */
export interface Message {
  /** For example system, user, assistant or tool. */
  readonly role: string;
  /** Text, possibly empty, or texts and pictures in order. Absent only with `toolCalls`. */
  readonly content?: string | readonly ContentPart[] | null | undefined;
  readonly toolCalls?: readonly MessageToolCall[] | undefined;
  /** The reasoning before an assistant's content, for templates that show it. */
  readonly reasoning?: string | undefined;
  /** The tool call that a tool's message answers. */
  readonly toolCallId?: string | undefined;
  readonly name?: string | undefined;
}

/** A tool that the model may call. */
export interface FunctionTool {
  readonly name: string;
  readonly description?: string | undefined;
  /** The schema of its arguments, an object. Default: it has none. */
  readonly parameters?: JsonSchema | SchemaObject | undefined;
  /** Hold the arguments of every call to the schema, also where no call is demanded. */
  readonly strict?: boolean | undefined;
}

/** A tool as such or in OpenAI's form. Others go to the model's template unchanged. */
export type Tool =
  | FunctionTool
  | { readonly type: "function"; readonly function: FunctionTool }
  | { readonly type: string; readonly [key: string]: unknown };

/** A part of free text with a fixed form, such as `<add>{"a": 1}</add>`. */
export interface StructuralTag {
  /** The text that begins the part. */
  readonly begin: string;
  /** The schema of what follows. Default: any JSON object. */
  readonly jsonSchema?: JsonSchema | SchemaObject | undefined;
  readonly end?: string | undefined;
  /** The prefix of `begin` after which the rest is enforced. Default: all of `begin`. */
  readonly trigger?: string | undefined;
}

/** Free text in which each tag begins a part with a fixed form. */
export interface StructuralTags {
  readonly tags: readonly StructuralTag[];
  /** The answer begins with a tag. */
  readonly required?: boolean | undefined;
  /** The answer ends with its first tag. */
  readonly single?: boolean | undefined;
}

/** How an answer is divided into parts. Absent formats are those of the model's chat template. */
export interface Parse {
  /** Format of tool calls, such as hermes; or none. */
  readonly toolCalls?: string | undefined;
  /** Format of the reasoning: think, harmony or none. */
  readonly reasoning?: string | undefined;
  readonly beginsInReasoning?: boolean | undefined;
  readonly toolNames?: readonly string[] | undefined;
  /** Whether pieces of content have `tokens`. */
  readonly contentTokens?: boolean | undefined;
}

/** No token completes a run of `ngramSize` tokens that the last `windowSize` tokens of the output have already. */
export interface NoRepeatNgram {
  readonly ngramSize: number;
  readonly windowSize: number;
  readonly allowedTokenIds?: readonly number[] | undefined;
}

/** A search for the most likely answers. */
export interface BeamSearch {
  /** Continuations kept side by side: 1 to 64, at least `n`. */
  readonly width: number;
  readonly lengthPenalty?: number | undefined;
  readonly earlyStopping?: boolean | "never" | undefined;
}

/** What every call takes. */
export interface CallOptions {
  /** Default: the model that is served. */
  readonly model?: string | undefined;
  /** Milliseconds until the call ends with DeadlineExceeded. Default: the client's; `null`: no limit. */
  readonly timeoutMs?: number | null | undefined;
  /** Cancels the call, which then fails with Cancelled. */
  readonly signal?: AbortSignal | undefined;
}

/** Options of messages. */
export interface ChatOptions {
  readonly tools?: readonly Tool[] | undefined;
  /** auto, none, required, or the name of the tool that must be called; OpenAI's object form is accepted too. */
  readonly toolChoice?:
    | "auto"
    | "none"
    | "required"
    | (string & {})
    | { readonly type?: string; readonly function: { readonly name: string } }
    | undefined;
  /** False: at most one call. */
  readonly parallelToolCalls?: boolean | undefined;
  /** Further variables for the template. */
  readonly templateArgs?: { readonly [name: string]: unknown } | undefined;
  readonly addGenerationPrompt?: boolean | undefined;
  readonly continueFinalMessage?: boolean | undefined;
  readonly templateName?: string | undefined;
}

/** Options of `tokenize`. */
export interface TokenizeOptions extends CallOptions, ChatOptions {
  readonly addSpecialTokens?: boolean | undefined;
}

/** The form of an answer: at most one of these. */
export interface FormOptions<T = unknown> {
  /** JSON that this schema accepts. Of a schema object, such as zod's, `parsed` has the type. */
  readonly jsonSchema?: JsonSchema | SchemaObject<T> | undefined;
  /** The answer is a JSON object. */
  readonly jsonObject?: boolean | undefined;
  /** The whole answer matches this pattern. */
  readonly regex?: string | undefined;
  /** The answer is one of these. */
  readonly choice?: readonly string[] | undefined;
  /** Lark's notation with a rule `start`, or GBNF with a rule `root`. */
  readonly grammar?: string | undefined;
  /** Parts of the answer have a fixed form. */
  readonly structuralTags?: StructuralTags | readonly StructuralTag[] | undefined;
  /** JSON may have any white space, not only one blank after each comma and colon. */
  readonly anyWhitespace?: boolean | undefined;
  /** The form begins after the model's reasoning. */
  readonly afterReasoning?: boolean | undefined;
}

/** How tokens are chosen. Absent: the model's own default, else the contract's. */
export interface SamplingOptions {
  /** 0 always takes the most probable token. */
  readonly temperature?: number | undefined;
  readonly topK?: number | undefined;
  readonly topP?: number | undefined;
  readonly minP?: number | undefined;
  readonly frequencyPenalty?: number | undefined;
  readonly presencePenalty?: number | undefined;
  readonly repetitionPenalty?: number | undefined;
  /** By token id, what is added to its logit. */
  readonly logitBias?: { readonly [tokenId: number]: number } | undefined;
  readonly allowedTokenIds?: readonly number[] | undefined;
  readonly noRepeatNgram?: NoRepeatNgram | undefined;
  /** Any 64 bits. */
  readonly seed?: number | bigint | undefined;
  /** Number of choices. */
  readonly n?: number | undefined;
  /** Search in place of sampling. */
  readonly beamSearch?: BeamSearch | undefined;
}

/** When a choice ends. */
export interface StoppingOptions {
  readonly maxTokens?: number | undefined;
  readonly minTokens?: number | undefined;
  readonly stop?: string | readonly string[] | undefined;
  readonly includeStopStrInOutput?: boolean | undefined;
  readonly stopInReasoning?: boolean | undefined;
  /** Tokens of reasoning after which its end is forced. */
  readonly maxReasoningTokens?: number | undefined;
  readonly stopTokenIds?: readonly number[] | undefined;
  readonly ignoreEos?: boolean | undefined;
  readonly badWords?: string | readonly string[] | undefined;
}

/** What is reported besides text and token ids. */
export interface OutputOptions {
  /** Alternatives reported per output token; 0 reports only the token's own. */
  readonly logprobs?: number | undefined;
  readonly promptLogprobs?: number | undefined;
  readonly skipSpecialTokens?: boolean | undefined;
  readonly returnPromptTokenIds?: boolean | undefined;
  readonly prefillProgress?: boolean | undefined;
  /** Divide the answer into content, reasoning and tool calls. True: as the model's chat template writes them. */
  readonly parse?: boolean | Parse | undefined;
}

/** Options of `generate` and `stream`. */
export interface Options<T = unknown>
  extends CallOptions,
    ChatOptions,
    FormOptions<T>,
    SamplingOptions,
    StoppingOptions,
    OutputOptions {
  /** Name of one of the model's adapters. */
  readonly adapter?: string | undefined;
  /** An id for the request, unique among the live ones. Default: a generated one. */
  readonly requestId?: string | undefined;
  /** Requests with a lower number run first. */
  readonly priority?: number | undefined;
  /** Cached prefixes are shared only between requests with the same salt. */
  readonly cacheSalt?: string | undefined;
  /** Names from `Model.capabilities`; a server that lacks one refuses the request. */
  readonly requires?: readonly string[] | undefined;
  /** The caller's place in a distributed trace (W3C Trace Context). */
  readonly traceparent?: string | undefined;
  /** False: the engine guesses no tokens ahead. The tokens are the same. */
  readonly speculation?: boolean | undefined;
  readonly addSpecialTokens?: boolean | undefined;
  /** Use only the end of the prompt, at most this many tokens. */
  readonly truncatePromptTokens?: number | undefined;
  /** What a server made of `tools` and `toolChoice`, as in `Admitted.options`; for a request that has neither. */
  readonly toolCalls?: ResolvedToolCalls | undefined;
}

/** A server's resolved tools. */
export interface ResolvedToolCalls {
  readonly tools: readonly FunctionTool[];
  readonly required?: boolean | undefined;
  readonly single?: boolean | undefined;
  readonly form?: FormOptions | undefined;
}

/** Options of vectors, scores and labels. */
export interface PoolingOptions extends CallOptions {
  readonly adapter?: string | undefined;
  /** Cut inputs that are too long, at their end (so does true) or start. Default: they are refused. */
  readonly truncate?: boolean | "end" | "start" | undefined;
  readonly maxInputTokens?: number | undefined;
  readonly addSpecialTokens?: boolean | undefined;
  readonly priority?: number | undefined;
  readonly cacheSalt?: string | undefined;
  readonly requires?: readonly string[] | undefined;
  readonly traceparent?: string | undefined;
}

/** Options of `embed`. */
export interface EmbedOptions extends PoolingOptions {
  /** Numbers of a vector: the leading ones, for models that were trained to have fewer. */
  readonly dimensions?: number | undefined;
  /** Whether vectors are scaled to a length of 1. Default: as the model does. */
  readonly normalize?: boolean | undefined;
  /** A vector for each token in place of one for each input. */
  readonly perToken?: boolean | undefined;
  /** Name of one of the model's prompts, which is put before each text, such as query. */
  readonly promptName?: string | undefined;
}

/** Options of `score` and `rerank`. */
export interface ScoreOptions extends PoolingOptions {
  /** False: the numbers before the head's activation. */
  readonly activation?: boolean | undefined;
  /** What a match means, for models whose template shows it. */
  readonly instruction?: string | undefined;
}

/** Options of `classify`. */
export interface ClassifyOptions extends PoolingOptions {
  /** False: the numbers before the head's activation, which are no probabilities. */
  readonly activation?: boolean | undefined;
  /** Labels for each token in place of labels for each input. */
  readonly perToken?: boolean | undefined;
}

/** An input of `embed`, `score` and `classify`: a text, or token ids. */
export type Input = string | readonly number[];
