// Waits that end early.

/** Settle after a while, or at once when the signal is aborted. */
export function sleep(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) {
      resolve();
      return;
    }
    const end = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, milliseconds);
    signal.addEventListener("abort", end);
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
