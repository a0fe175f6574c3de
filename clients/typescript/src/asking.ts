// A request with its state, as a client or a session asks for it.

import type { CallOptions, Options, Prompt } from "./options.js";
import { buildRequest } from "./request.js";
import { Deadline, type RetryPolicy, RetryState } from "./retry.js";
import { RetryingRequest } from "./retrying-request.js";
import { jsonReader } from "./schemas.js";

/** The request for a prompt; `settings` are the client's. */
export function retryingRequest<T>(
  prompt: Prompt,
  options: Options<T>,
  settings: { readonly policy: RetryPolicy; readonly timeoutMs: number | undefined },
): RetryingRequest<T> {
  const request = buildRequest(prompt, options);
  const deadline = new Deadline(timeoutOf(options, settings.timeoutMs));
  return new RetryingRequest(request, new RetryState(settings.policy, deadline), deadline, jsonReader(options));
}

/** Of a call or a client, where null means no limit. */
export function timeoutOf({ timeoutMs }: Pick<CallOptions, "timeoutMs">, usual: number | undefined): number | undefined {
  return timeoutMs === undefined ? usual : (timeoutMs ?? undefined);
}
