// @ringline/client/contract: the messages of the contract, for stubs of your own.

export * from "./stubs/google/rpc/status_pb.js";
export * from "./stubs/ringline/inference/v1/inference_pb.js";
export * as types from "./contract-types.js";
