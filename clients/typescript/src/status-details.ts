// Reads the details of a status that the contract names: google.rpc.ErrorInfo, BadRequest and RetryInfo.

import { BinaryReader } from "@bufbuild/protobuf/wire";

/** What the details say; undefined where they say nothing. */
export interface StatusDetails {
  reason?: string;
  /** The first invalid field. */
  field?: string;
  retryAfterMs?: number;
}

interface Detail {
  readonly typeUrl: string;
  readonly value: Uint8Array;
}

const DOMAIN = "ringline";
const PREFIX = "type.googleapis.com/google.rpc.";

/** What the details of one status say. Unknown ones are skipped. */
export function readDetails(details: readonly Detail[]): StatusDetails {
  const read: StatusDetails = {};
  for (const { typeUrl, value } of details) {
    if (typeUrl === `${PREFIX}ErrorInfo`) {
      const info = fields(value);
      if (text(info.get(2)) === DOMAIN) read.reason = text(info.get(1));
    } else if (typeUrl === `${PREFIX}BadRequest`) {
      const violation = fields(value).get(1);
      if (violation instanceof Uint8Array) read.field ??= text(fields(violation).get(1));
    } else if (typeUrl === `${PREFIX}RetryInfo`) {
      const delay = fields(value).get(1);
      if (delay instanceof Uint8Array) {
        const duration = fields(delay);
        read.retryAfterMs = Number(duration.get(1) ?? 0) * 1000 + Number(duration.get(2) ?? 0) / 1e6;
      }
    }
  }
  return read;
}

/** Numbers and bytes of a message's fields, by number; of a repeated one, the first. */
function fields(message: Uint8Array): Map<number, bigint | Uint8Array> {
  const found = new Map<number, bigint | Uint8Array>();
  const reader = new BinaryReader(message);
  while (reader.pos < reader.len) {
    const [number, type] = reader.tag();
    if (type === 0) keep(number, BigInt(reader.int64()));
    else if (type === 2) keep(number, reader.bytes());
    else reader.skip(type, number);
  }
  return found;

  function keep(number: number, value: bigint | Uint8Array): void {
    if (!found.has(number)) found.set(number, value);
  }
}

function text(value: bigint | Uint8Array | undefined): string {
  return value instanceof Uint8Array ? new TextDecoder().decode(value) : "";
}
