// What both entries export.

export type { SharedOptions, Token } from "./client.js";
export {
  Cancelled,
  type Code,
  DeadlineExceeded,
  FailedPrecondition,
  InvalidRequest,
  NotFound,
  Overloaded,
  ParseError,
  PermissionDenied,
  ProtocolError,
  RingError,
  ServerError,
  Truncated,
  Unavailable,
} from "./errors.js";
export type * from "./options.js";
export {
  Classification,
  Classifications,
  Embeddings,
  type PoolingReport,
  type Ranked,
  Ranking,
  Scores,
} from "./pooling.js";
export { Choice, Generation, ToolCall } from "./results.js";
export type {
  Adapter,
  Admitted,
  Content,
  Delta,
  Event,
  Finished,
  FinishReason,
  ListedAdapter,
  Model,
  Part,
  Partial,
  Pooling,
  Prefill,
  PromptLogprobs,
  Reasoning,
  Resumed,
  Started,
  TokenLogprob,
  Tokenization,
  ToolCallPiece,
  Usage,
} from "./results.js";
export type { Stream } from "./stream.js";
