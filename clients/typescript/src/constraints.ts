// The form of an answer: from options such as `jsonSchema` to the contract's Constraint.

import { create } from "@bufbuild/protobuf";
import { assign, expectKeys, expectList, expectObject } from "./fields.js";
import { schemaText } from "./schemas.js";
import {
  CallableToolSchema,
  ChoiceOfTextsSchema,
  type Constraint,
  ConstraintSchema,
  StructuralTagSchema,
  type StructuralTags,
  StructuralTagsSchema,
  type ToolCalls,
  ToolCallsSchema,
} from "./stubs/ringline/types/v1/constraint_pb.js";
import { setFunction } from "./tools.js";

/** Options that give a form; a request has at most one. */
const FORMS = ["jsonSchema", "jsonObject", "regex", "choice", "grammar", "structuralTags", "toolCalls"];
const OTHERS = ["anyWhitespace", "afterReasoning"];
export const FORM_OPTIONS = [...FORMS, ...OTHERS];

/**
 * The constraint that the options in `FORM_OPTIONS` ask for; undefined without a form.
 *
 * Throws TypeError for two forms, for another option without a form, and for a value of a wrong type.
 */
export function constraintOf(options: ReadonlyMap<string, unknown>): Constraint | undefined {
  const jsonObject = options.get("jsonObject");
  if (jsonObject !== undefined && typeof jsonObject !== "boolean") {
    throw new TypeError(`jsonObject: expected true, got ${typeof jsonObject}`);
  }
  const forms = FORMS.filter((form) => options.has(form) && !(form === "jsonObject" && !jsonObject));
  if (forms.length > 1) {
    throw new TypeError(`an answer has one form, and ${forms.join(" and ")} give ${forms.length}: leave out all but one`);
  }
  const others = OTHERS.filter((name) => options.has(name));
  const [form] = forms;
  if (form === undefined) {
    if (others.length === 0) return undefined;
    const some = FORMS.slice(0, 5).join(", ");
    throw new TypeError(`option ${others[0]} is for answers that have a form: give ${some} too`);
  }
  const constraint = create(ConstraintSchema);
  setForm(constraint, form, options.get(form));
  for (const name of others) assign(ConstraintSchema, constraint, name, options.get(name));
  return constraint;
}

function setForm(constraint: Constraint, form: string, value: unknown): void {
  if (form === "jsonSchema") {
    assign(ConstraintSchema, constraint, form, schemaText(value, form));
  } else if (form === "choice") {
    expectList(value, "a list of texts", form);
    const choice = create(ChoiceOfTextsSchema);
    assign(ChoiceOfTextsSchema, choice, "texts", value, form);
    constraint.kind = { case: "choice", value: choice };
  } else if (form === "structuralTags") {
    constraint.kind = { case: "structuralTags", value: tagsOf(value) };
  } else if (form === "toolCalls") {
    constraint.kind = { case: "toolCalls", value: callsOf(value) };
  } else {
    assign(ConstraintSchema, constraint, form, value);
  }
}

function tagsOf(value: unknown): StructuralTags {
  const given = Array.isArray(value) ? { tags: value } : value;
  expectObject(given, "a list of tags, or an object such as { tags: […], required: true }", "structuralTags");
  expectKeys(given, ["tags", "required", "single"], "structuralTags");
  const tags = create(StructuralTagsSchema);
  setSwitches(StructuralTagsSchema, tags, given, "structuralTags");
  const list: unknown = given.tags ?? [];
  expectList(list, "a list of objects", "structuralTags.tags");
  tags.tags = list.map((one, index) => {
    const path = `structuralTags.tags[${index}]`;
    expectObject(one, "an object such as { begin: '<add>', jsonSchema: {…}, end: '</add>' }", path);
    expectKeys(one, ["begin", "jsonSchema", "end", "trigger"], path);
    const tag = create(StructuralTagSchema);
    for (const [name, part] of Object.entries(one)) {
      if (part === undefined || part === null) continue;
      const text = name === "jsonSchema" ? schemaText(part, `${path}.${name}`) : part;
      assign(StructuralTagSchema, tag, name, text, `${path}.${name}`);
    }
    return tag;
  });
  return tags;
}

function callsOf(value: unknown): ToolCalls {
  expectObject(value, "an object such as Admitted.options has it", "toolCalls");
  expectKeys(value, ["tools", "required", "single", "form"], "toolCalls");
  const calls = create(ToolCallsSchema);
  setSwitches(ToolCallsSchema, calls, value, "toolCalls");
  const list: unknown = value.tools ?? [];
  expectList(list, "a list of objects", "toolCalls.tools");
  calls.tools = list.map((one, index) => {
    const path = `toolCalls.tools[${index}]`;
    expectObject(one, "an object such as { name: 'add', parameters: {…} }", path);
    expectKeys(one, ["name", "parameters", "strict"], path);
    const tool = create(CallableToolSchema);
    setFunction(CallableToolSchema, tool, one, path);
    return tool;
  });
  if (value.form !== undefined) {
    expectObject(value.form, "an object such as { jsonSchema: {…} }", "toolCalls.form");
    const form = constraintOf(new Map(Object.entries(value.form)));
    if (form !== undefined) calls.form = form;
  }
  return calls;
}

function setSwitches(
  schema: typeof StructuralTagsSchema | typeof ToolCallsSchema,
  target: StructuralTags | ToolCalls,
  value: Record<string, unknown>,
  path: string,
): void {
  for (const name of ["required", "single"]) {
    if (value[name] !== undefined) assign(schema, target, name, value[name], `${path}.${name}`);
  }
}
