// The parts of a message's content: texts, and pictures as programs have them.

import { create } from "@bufbuild/protobuf";
import { invalid } from "./errors.js";
import { assign, expectKeys, nameOf } from "./fields.js";
import {
  type Chat,
  type ChatMessage,
  ChatMessageSchema,
  ContentPartSchema,
  MediaSchema,
} from "./stubs/ringline/inference/v1/inference_pb.js";

const KINDS = "text, image and image_url";
const PICTURES = "the bytes of a file such as a PNG or JPEG, or a data: URL";
const DATA_URL = /^data:([^,;]*)(?:;[^,;]*)*;\s*base64\s*,/i;
const DETAILS = [undefined, null, "", "auto", "high", "original"];

interface Picture {
  readonly data: Uint8Array;
  readonly mimeType: unknown;
}

/**
 * Set a message's content: one text where all parts are texts, else its parts in order.
 *
 * Throws TypeError for what is no part, InvalidRequest for a part that cannot be used.
 */
export function setContent(target: ChatMessage, parts: readonly unknown[], path: string): void {
  if (parts.length === 0) throw invalid(path, "an empty list: expected a text, or at least one part of type text");
  const found = parts.map((part, index) => read(part, `${path}[${index}]`));
  if (found.every((part) => typeof part === "string")) {
    target.content = found.join("");
    return;
  }
  target.contentParts = found.map((part, index) => {
    if (typeof part === "string") return create(ContentPartSchema, { part: { case: "text", value: part } });
    const media = create(MediaSchema, { source: { case: "data", value: part.data } });
    assign(MediaSchema, media, "mimeType", part.mimeType, `${path}[${index}].mimeType`);
    return create(ContentPartSchema, { part: { case: "media", value: media } });
  });
}

/** Whether any message has a picture. */
export function hasPictures(chat: Chat | undefined): boolean {
  return chat?.messages.some(({ contentParts }) => contentParts.some(({ part }) => part.case === "media")) ?? false;
}

function read(part: unknown, where: string): string | Picture {
  if (typeof part === "string") return checkedText(part, where);
  const bytes = bytesOf(part);
  if (bytes !== undefined) return picture(bytes, "", where);
  if (typeof part !== "object" || part === null) {
    throw new TypeError(`${where}: expected a text, a picture, or an object with a type, got ${nameOf(part)}`);
  }
  const given = part as Record<string, unknown>;
  if (given.type === "text") {
    expectKeys(given, ["type", "text"], where);
    return checkedText(given.text, `${where}.text`);
  }
  if (given.type === "image") {
    expectKeys(given, ["type", "image", "mimeType"], where);
    const found = image(given.image, `${where}.image`);
    return given.mimeType === undefined ? found : { ...found, mimeType: given.mimeType };
  }
  if (given.type === "image_url") {
    expectKeys(given, ["type", "image_url"], where);
    return ofImageUrl(given.image_url, `${where}.image_url`);
  }
  const problem = given.type === undefined ? "its type is missing" : `a part of type ${String(given.type)} is not supported`;
  throw invalid(where, `${problem}: expected parts of type ${KINDS}`);
}

function checkedText(text: unknown, where: string): string {
  const checked = create(ChatMessageSchema);
  assign(ChatMessageSchema, checked, "content", text, where);
  return checked.content;
}

function image(given: unknown, where: string): Picture {
  if (typeof given === "string") return ofUrl(given, where);
  const bytes = bytesOf(given);
  if (bytes === undefined) throw new TypeError(`${where}: expected ${PICTURES}, got ${nameOf(given)}`);
  return picture(bytes, "", where);
}

/** A part in OpenAI's form. */
function ofImageUrl(given: unknown, where: string): Picture {
  if (typeof given === "string") return ofUrl(given, where);
  if (typeof given !== "object" || given === null) {
    throw new TypeError(`${where}: expected a data: URL, got ${nameOf(given)}`);
  }
  expectKeys(given, ["url", "detail"], where);
  const { url, detail } = given as { url?: unknown; detail?: string };
  if (!DETAILS.includes(detail)) throw invalid(`${where}.detail`, `${detail} is not supported: expected auto, or none`);
  if (typeof url !== "string") throw new TypeError(`${where}.url: expected a data: URL, got ${nameOf(url)}`);
  return ofUrl(url, `${where}.url`);
}

function ofUrl(url: string, where: string): Picture {
  if (/^(https?|file):/i.test(url)) {
    throw invalid(where, `the client fetches nothing: give the picture itself, as ${PICTURES}`);
  }
  const head = DATA_URL.exec(url.slice(0, 1024));
  if (head === null) {
    throw invalid(where, `${url.slice(0, 40)} is no data: URL in base64: expected data:image/png;base64,…`);
  }
  let binary: string;
  try {
    binary = atob(url.slice(head[0].length));
  } catch {
    throw invalid(where, "not base64 after the comma: expected data:image/png;base64,…");
  }
  const data = Uint8Array.from(binary, (character) => character.charCodeAt(0));
  return picture(data, (head[1] ?? "").trim().toLowerCase(), where);
}

function picture(data: Uint8Array, mimeType: unknown, where: string): Picture {
  if (data.length === 0) throw invalid(where, `an empty picture: expected ${PICTURES}`);
  return { data, mimeType };
}

function bytesOf(given: unknown): Uint8Array | undefined {
  if (given instanceof Uint8Array) return given;
  return given instanceof ArrayBuffer ? new Uint8Array(given) : undefined;
}
