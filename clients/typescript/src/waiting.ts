// Waits that end early.

import { Cancelled, DeadlineExceeded } from "./errors.js";
import type { Deadline } from "./retry.js";

/** What waits for each signal, and the signal's listener. */
const WAITING = new WeakMap<AbortSignal, { readonly callbacks: Set<() => void>; readonly listener: () => void }>();

/**
 * Call back when a signal is aborted; returns what forgets it. The signal has one listener however many requests share
 * it, as Node warns of more than ten, and none once they have ended.
 */
export function onAbort(signal: AbortSignal, callback: () => void): () => void {
  let waiting = WAITING.get(signal);
  if (waiting === undefined) {
    const callbacks = new Set<() => void>();
    waiting = { callbacks, listener: () => [...callbacks].forEach((each) => each()) };
    signal.addEventListener("abort", waiting.listener);
    WAITING.set(signal, waiting);
  }
  const { callbacks, listener } = waiting;
  callbacks.add(callback);
  return () => {
    callbacks.delete(callback);
    if (callbacks.size > 0 || WAITING.get(signal)?.callbacks !== callbacks) return;
    WAITING.delete(signal);
    signal.removeEventListener("abort", listener);
  };
}

/** The longest delay that a timer has, in milliseconds; above it, it fires at once. */
const LONGEST_MS = 2 ** 31 - 1;

/**
 * What a promise gives. Rejects with Cancelled if the signal is aborted before, with DeadlineExceeded if the time has
 * passed; `what` it waited for.
 */
export async function within<Value>(
  promise: Promise<Value>,
  signal: AbortSignal | undefined,
  deadline: Deadline,
  what: string,
): Promise<Value> {
  promise.catch(() => undefined); // nobody may wait for it any more
  const left = deadline.remaining();
  let forget: (() => void) | undefined;
  let timer: ReturnType<typeof setTimeout> | undefined;
  try {
    return await new Promise((resolve, reject) => {
      const stop = () => reject(new Cancelled("the request was cancelled"));
      if (signal?.aborted) stop();
      else if (signal !== undefined) forget = onAbort(signal, stop);
      const late = () => reject(new DeadlineExceeded(`the timeout passed before ${what}`));
      if (left !== undefined) timer = setTimeout(late, left);
      promise.then(resolve, reject);
    });
  } finally {
    clearTimeout(timer);
    forget?.();
  }
}

/** Settle after a while, or at once when the signal is aborted. */
export function sleep(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) {
      resolve();
      return;
    }
    const end = () => {
      clearTimeout(timer);
      forget();
      resolve();
    };
    const timer = setTimeout(end, Math.min(milliseconds, LONGEST_MS));
    const forget = onAbort(signal, end);
  });
}

/** Give the answers to items in their order, with so many calls at once. The first error ends it. */
export async function inOrder<Item, Answer>(
  items: Iterable<Item>,
  most: number,
  call: (item: Item) => Promise<Answer>,
): Promise<Answer[]> {
  const answers: Answer[] = [];
  const left = items[Symbol.iterator]();
  let next = 0;
  let failed = false;
  const worker = async () => {
    while (!failed) {
      const { done, value } = left.next();
      if (done) return;
      const place = next++;
      try {
        answers[place] = await call(value);
      } catch (error) {
        failed = true;
        throw error;
      }
    }
  };
  await Promise.all(Array.from({ length: most }, worker));
  return answers;
}
