// What every client may rely on, checked for one request as its events arrive: admitted first, gapless positions,
// exactly one terminal per choice with exact usage on the last, nothing after a terminal.

import type { Admitted, GenerateResponse, Usage } from "./build/stubs/ringline/inference/v1/inference.js";
import { FinishCause } from "./build/stubs/ringline/types/v1/output.js";

export interface Choice {
  text: string;
  tokenIds: number[];
  cause?: string;
}

export class Request {
  readonly choices = new Map<number, Choice>();
  readonly violations: string[] = [];
  admitted?: Admitted;
  usage?: Usage;
  /** Code and message of a request that was refused or failed. */
  error?: { code: number; message: string };
  /** Cause of a request that ended before it had choices. */
  cause?: string;

  constructor(readonly name: string) {}

  /** Whether its last terminal was seen. */
  get finished(): boolean {
    if (this.cause !== undefined) return true;
    return this.choices.size > 0 && [...this.choices.values()].every((choice) => choice.cause !== undefined);
  }

  take(response: GenerateResponse): void {
    const event = response.event;
    this.expect(!this.finished, `${event?.$case} after the last terminal`);
    this.expect(event !== undefined, "a response without an event");
    switch (event?.$case) {
      case "admitted":
        this.admit(event.value);
        break;
      case "delta": {
        const { choice: index, firstPosition, text, tokenIds } = event.value;
        const choice = this.choices.get(index);
        if (choice === undefined || choice.cause !== undefined) return this.violate(`delta of choice ${index}`);
        this.expect(firstPosition === choice.tokenIds.length, `position ${firstPosition}, not ${choice.tokenIds.length}`);
        choice.tokenIds.push(...tokenIds);
        choice.text += text;
        break;
      }
      case "terminal": {
        const { choice: index, cause, error, usage } = event.value;
        const name = FinishCause[cause]?.replace("FINISH_REASON_", "") ?? String(cause);
        this.expect(cause !== FinishCause.FINISH_REASON_UNSPECIFIED, "a terminal without a cause");
        this.expect((name === "ERROR") === (error !== undefined), "a status goes with ERROR alone");
        if (error !== undefined) this.error = { code: error.code, message: error.message };
        if (index === undefined) {
          this.expect(this.admitted === undefined, "a terminal without a choice after Admitted");
          this.cause = name;
        } else {
          const choice = this.choices.get(index);
          if (choice === undefined || choice.cause !== undefined) return this.violate(`terminal of choice ${index}`);
          choice.cause = name;
        }
        this.end(usage);
        break;
      }
    }
  }

  private admit(admitted: Admitted): void {
    this.expect(this.admitted === undefined, "admitted twice");
    this.admitted = admitted;
    const sampling = admitted.sampling;
    this.expect(sampling?.seed !== undefined && sampling.temperature !== undefined, "a default is not resolved");
    for (let index = 0; index < (sampling?.n ?? 0); index++) this.choices.set(index, { text: "", tokenIds: [] });
    this.expect(this.choices.size > 0, "admitted without choices");
  }

  private end(usage: Usage | undefined): void {
    this.expect(!(usage !== undefined && !this.finished), "usage before the last terminal");
    if (!this.finished || this.admitted === undefined) return;
    this.usage = usage;
    const delivered = [...this.choices.values()].reduce((sum, choice) => sum + choice.tokenIds.length, 0);
    this.expect(usage?.completionTokens === delivered, `usage ${usage?.completionTokens}, delivered ${delivered}`);
    this.expect(usage?.promptTokens === this.admitted.promptTokens, "usage counts another prompt");
  }

  private expect(holds: boolean, otherwise: string): void {
    if (!holds) this.violate(otherwise);
  }

  private violate(what: string): void {
    this.violations.push(`${this.name}: ${what}`);
  }
}
