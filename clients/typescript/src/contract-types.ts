// The messages that several services of the contract share.

export * from "./stubs/ringline/types/v1/adapter_pb.js";
export * from "./stubs/ringline/types/v1/constraint_pb.js";
export * from "./stubs/ringline/types/v1/error_pb.js";
export * from "./stubs/ringline/types/v1/link_pb.js";
export * from "./stubs/ringline/types/v1/output_pb.js";
export * from "./stubs/ringline/types/v1/part_pb.js";
export * from "./stubs/ringline/types/v1/pooling_pb.js";
export * from "./stubs/ringline/types/v1/sampling_pb.js";
