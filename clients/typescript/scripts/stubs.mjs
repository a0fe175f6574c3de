// Generates the messages of the contract from ../../protos into src/stubs/, with buf: the one of the checkout's
// environment (`make setup`), else the one on the PATH.

import { spawnSync } from "node:child_process";
import { existsSync, rmSync } from "node:fs";
import { fileURLToPath } from "node:url";

const here = fileURLToPath(new URL("..", import.meta.url));
const ours = fileURLToPath(new URL("../../../.venv/bin/buf", import.meta.url));
const buf = process.env.BUF ?? (existsSync(ours) ? ours : "buf");

// With what was built of earlier ones.
for (const old of ["../src/stubs", "../dist"]) rmSync(new URL(old, import.meta.url), { recursive: true, force: true });
const paths = ["inference", "types"].flatMap((part) => ["--path", `../../protos/ringline/${part}`]);
const done = spawnSync(buf, ["generate", "../../protos", ...paths], { cwd: here, stdio: "inherit" });
if (done.error) console.error(`${buf} cannot be run (${done.error.message}): run \`make setup\`, or set BUF to its path`);
process.exit(done.status ?? 1);
