// What every client may rely on, checked for one request as its events arrive: admitted first, started before the first
// delta, gapless positions, one end per choice, then the end of the request with exact usage; or a refusal alone.
// Events that this program does not know are passed over: a later version of the server may send them.

import type { Admitted, GenerateResponse, Usage } from "./build/stubs/ringline/inference/v1/inference.js";
import { FinishReason } from "./build/stubs/ringline/types/v1/output.js";

export interface Choice {
  text: string;
  tokenIds: number[];
  finishReason?: string;
}

export class Request {
  readonly choices = new Map<number, Choice>();
  readonly violations: string[] = [];
  admitted?: Admitted;
  usage?: Usage;
  /** Code and message of a request that was refused or failed. */
  error?: { code: number; message: string };
  started = false;
  refused = false;

  constructor(readonly name: string) {}

  /** Whether its end was seen. */
  get finished(): boolean {
    return this.refused || this.usage !== undefined;
  }

  take(response: GenerateResponse): void {
    const event = response.event;
    this.expect(!this.finished, `${event?.$case} after the end`);
    switch (event?.$case) {
      case "admitted":
        this.admit(event.value);
        break;
      case "started":
        this.expect(this.admitted !== undefined, "started before admitted");
        this.expect(event.value.modelDigest !== "" && event.value.numerics !== "", "started without who computes it");
        this.started = true;
        break;
      case "delta": {
        const { choice: index, firstPosition, text, tokenIds } = event.value;
        const choice = this.choices.get(index);
        if (choice === undefined || choice.finishReason !== undefined) return this.violate(`delta of choice ${index}`);
        this.expect(this.started, "a delta before started");
        this.expect(firstPosition === choice.tokenIds.length, `position ${firstPosition}, not ${choice.tokenIds.length}`);
        choice.tokenIds.push(...tokenIds);
        choice.text += text;
        break;
      }
      case "choiceFinished": {
        const { choice: index, finishReason, error } = event.value;
        const choice = this.choices.get(index);
        if (choice === undefined || choice.finishReason !== undefined) return this.violate(`end of choice ${index}`);
        choice.finishReason = FinishReason[finishReason]?.replace("FINISH_REASON_", "") ?? "ERROR";
        this.expect(finishReason !== FinishReason.FINISH_REASON_UNSPECIFIED, "an end without a reason");
        this.expect((choice.finishReason === "ERROR") === (error !== undefined), "a status goes with ERROR alone");
        if (error !== undefined) this.error = { code: error.code, message: error.message };
        break;
      }
      case "requestFinished":
        this.end(event.value.usage);
        break;
      case "refused": {
        const status = event.value.status;
        this.expect(this.admitted === undefined, "refused after admitted");
        this.expect(status !== undefined, "refused without a status");
        this.error = { code: status?.code ?? 0, message: status?.message ?? "" };
        this.refused = true;
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
    if (usage === undefined || this.admitted === undefined) return this.violate("an end without usage, or not admitted");
    for (const [index, choice] of this.choices) this.expect(choice.finishReason !== undefined, `no end of choice ${index}`);
    this.usage = usage;
    const delivered = [...this.choices.values()].reduce((sum, choice) => sum + choice.tokenIds.length, 0);
    this.expect(usage.completionTokens === delivered, `usage ${usage.completionTokens}, delivered ${delivered}`);
    this.expect(usage.promptTokens === this.admitted.promptTokens, "usage counts another prompt");
  }

  private expect(holds: boolean, otherwise: string): void {
    if (!holds) this.violate(otherwise);
  }

  private violate(what: string): void {
    this.violations.push(`${this.name}: ${what}`);
  }
}
