"""JS100 to JS149: found while the workspace files are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from jsplan.codes.text import CodeText

WORKSPACE_FILES: Final[Mapping[str, CodeText]] = {
    "JS100": CodeText(
        "A file cannot be read.",
        "It is missing, it is a folder, its permissions forbid reading, or it is not UTF-8.",
        "Correct the path or the permissions. Name the folder of the workspace with -C, or "
        "create one with `jsplan init`.",
    ),
    "JS101": CodeText(
        "A file is not valid YAML or JSON.",
        "A bracket, quote or indentation is wrong, or the file uses YAML tags, which jsplan "
        "does not read.",
        "Correct the file at the line and column of the message. Put text that begins with "
        "`!` in quotes.",
    ),
    "JS102": CodeText(
        "A file is empty.",
        "jsplan.yaml needs at least a format version and a name; any other empty file has no "
        "effect.",
        "Begin jsplan.yaml with `jsplan: 1` and `workspace: NAME`. Fill or remove other files.",
    ),
    "JS103": CodeText(
        "The same key is written twice.",
        "YAML would keep only one of the two values and drop the other without a message.",
        "Keep one. The message names the place of the other.",
    ),
    "JS104": CodeText(
        "A value has the wrong shape.",
        "A list stands where a mapping is expected, a number where text is expected, or the like.",
        "Write the shape that the message shows.",
    ),
    "JS105": CodeText(
        "A key is unknown.",
        "It is misspelled, or it belongs to another section or to a newer release of jsplan.",
        "Correct the spelling, or remove the key. For a field of a newer nats-server use "
        "`x_raw:`.",
    ),
    "JS106": CodeText(
        "A required key is missing.",
        "The resource or section cannot be understood without it.",
        "Add the key that the message names.",
    ),
    "JS107": CodeText(
        "The format version (`jsplan:`) is missing or not supported.",
        "The files were written for another release of jsplan.",
        "Write `jsplan: 1`, or install the release of jsplan that reads this format.",
    ),
    "JS108": CodeText(
        "The name of the workspace is missing or not allowed.",
        "The name is part of the state and of messages, so it may hold only a-z, 0-9, `-` and "
        "`_`.",
        "Write `workspace: NAME` with a name that begins with a letter or a digit.",
    ),
    "JS109": CodeText(
        "An `include` matches no file.",
        "The path is wrong. Paths are relative to jsplan.yaml.",
        "Correct the path or the pattern, or remove the entry.",
    ),
    "JS110": CodeText(
        "The same thing is declared twice.",
        "Two files, or two entries of one file, declare the same address or key.",
        "Keep one. The message names the place of the other.",
    ),
    "JS111": CodeText(
        "`${…}` names something that does not exist.",
        "The variable, attribute or environment variable is misspelled or not set.",
        "Correct the name, declare the variable under `vars:`, or set the environment variable. "
        "`validate`, `lint` without `--live` and `graph` do not need `${env.X}`.",
    ),
    "JS112": CodeText(
        "`${env.X}` is used where it is not allowed.",
        "Values of the environment are often secrets. Plans and state show resource fields, "
        "so `${env.X}` works only in connections, the backend and sinks.",
        "Use a variable: `${var.x}`, set by `--var` or `JSPLAN_VAR_x`.",
    ),
    "JS113": CodeText(
        "`${…}` is malformed, or not allowed in this place.",
        "It is misspelled or not closed, it stands in a key, or a secret field takes its "
        "value from a variable, which plans show.",
        "Correct it as the message shows. Write `$${` for a literal `${`, and `${env.X}` for "
        "a secret.",
    ),
    "JS114": CodeText(
        "A variable has no value.",
        "It has no default in `vars:`, and no value was given.",
        "Pass `--var NAME=VALUE` or `--var-file FILE`, or set `JSPLAN_VAR_NAME`.",
    ),
    "JS115": CodeText(
        "A value was given for a variable that the workspace does not have.",
        "The name is misspelled, or `vars:` does not declare it.",
        "Correct the name, add it to `vars:`, or do not pass it.",
    ),
    "JS116": CodeText(
        "The value of a variable has the wrong type.",
        "The type of a variable is the type of its default.",
        "Pass a value of that type, or change the default.",
    ),
    "JS117": CodeText(
        "No environment is chosen, or the chosen one does not exist.",
        "The workspace has `environments:`, so jsplan must know which one is meant.",
        "Pass `-e NAME` or set JSPLAN_ENV. The message lists the names.",
    ),
    "JS118": CodeText(
        "A resource names an environment that the workspace does not have.",
        "The name is misspelled, or the environment was removed.",
        "Correct the name, or declare the environment.",
    ),
    "JS120": CodeText(
        "The settings of a connection contradict each other.",
        "It names both a URL and a context, several ways to log in, a password without a "
        "user, or the like.",
        "Keep one of the settings. The message names them.",
    ),
    "JS121": CodeText(
        "The name or the range of a domain is not allowed.",
        "A domain is one word of letters, digits, `-` and `_`, or such a word with a range of "
        "numbers.",
        "Correct the name. Write a range as in `store-{001..200}`.",
    ),
    "JS122": CodeText(
        "A connection or a domain is used that is not declared.",
        "The name is misspelled, or the declaration was removed.",
        "Correct the name, or declare it. The message suggests the closest name.",
    ),
    "JS123": CodeText(
        "Two domains lead to the same JetStream.",
        "Both have the same connection and the same JetStream domain, or the same login, or both "
        "show the same stream of one server, so a resource would be managed twice, or a reader "
        "of it not be found.",
        "Correct one of them, or add `same_as:` if one is only another way to the other.",
    ),
    "JS124": CodeText(
        "A selector matches no domain.",
        "The label or glob is misspelled, or no domain has the label yet.",
        "Correct the selector, or give a domain the label under `domains:`.",
    ),
    "JS125": CodeText(
        "A mirror does not name exactly one domain.",
        "A mirror has one origin, and the selector matches none or several.",
        "Name one domain. To read from several streams, use `sources:`.",
    ),
    "JS126": CodeText(
        "The workspace has no domains.",
        "jsplan must know at least one JetStream.",
        "Add `domains:`; the message shows the lines. `jsplan domains discover` lists what a "
        "connection reaches.",
    ),
    "JS127": CodeText(
        "A resource does not name its domain.",
        "The workspace has several domains, and no default is set.",
        "Add `domain:` to the resource, or `defaults: {domain: …}`.",
    ),
    "JS128": CodeText(
        "The settings of the backend contradict each other.",
        "`backend:` must name exactly one place, and the bucket of a KV backend is not a "
        "resource of the workspace.",
        "Write `local: {path: …}` or `kv: {domain: …, bucket: …}`, and do not declare that "
        "bucket.",
    ),
    "JS130": CodeText(
        "JetStream does not accept the value of a field.",
        "It has the wrong type or unit, is out of range, or is not one of the allowed words.",
        "Correct the value. The pages on fields list what each field takes.",
    ),
    "JS131": CodeText(
        "A name is not allowed.",
        "JetStream names hold no blanks, dots, wildcards or slashes; names of buckets hold "
        "only letters, digits, `-` and `_`.",
        "Choose another name.",
    ),
    "JS132": CodeText(
        "The stream of a bucket is declared as a stream.",
        "A KV bucket B is the stream KV_B, an object store B the stream OBJ_B, and jsplan "
        "manages them as buckets.",
        "Declare it under `kv:` or `object_stores:` with `bucket:`.",
    ),
    "JS133": CodeText(
        "A name is reserved.",
        "The server or jsplan creates and deletes objects of this name itself.",
        "Choose another name.",
    ),
    "JS134": CodeText(
        "The names of a consumer contradict each other, or its expiry is not set.",
        "`name` and `durable_name` must be equal. A consumer without a durable name expires, "
        "so it needs `inactive_threshold`.",
        "Keep one of the names, or add `inactive_threshold`.",
    ),
    "JS135": CodeText(
        "A `config_file` cannot be used.",
        "It is empty, or it holds neither a configuration nor the output of `info --json`.",
        "Write the configuration into it, or remove `config_file`.",
    ),
    "JS136": CodeText(
        "`x_raw` names a field that this release knows.",
        "`x_raw` is for fields of newer servers. A known field belongs beside it, where "
        "jsplan checks it.",
        "Move the field out of `x_raw`.",
    ),
    "JS137": CodeText(
        "A mirror or source names its origin in two ways.",
        "`domain` already determines `external`, so both together may contradict each other.",
        "Keep `domain`, or keep `external`.",
    ),
    "JS138": CodeText(
        "An entry of a bucket, or an object, cannot be kept there.",
        "It is larger than the bucket or a server takes, its bucket mirrors another one, or the "
        "`ttl` of the bucket deletes it again.",
        "Store less, raise `max_value_size` (of a stream `max_msg_size`, of the server "
        "`max_payload`), or declare it in another bucket.",
    ),
    "JS139": CodeText(
        "No object or schedule can be written to one stream alone.",
        "Servers map KV buckets below the API prefix of a domain, and nothing else. A message for "
        "an object or a schedule reaches each stream of the account that stores its subject, also "
        "in linked domains, and none in another account.",
        "Give object stores of linked domains different names, and streams different subjects.",
    ),
    "JS140": CodeText(
        "An entry of `lifecycle` or `lint` is wrong.",
        "It names a field, a lint rule or a value that does not exist.",
        "Correct the entry. `jsplan explain` lists the rules.",
    ),
    "JS141": CodeText(
        "A hazard code does not exist.",
        "The code is misspelled; the list of hazards is closed.",
        "Use a code of the list: `jsplan explain`.",
    ),
    "JS142": CodeText(
        "A date is not valid.",
        "Dates are written year, month, day.",
        "Write it as in `2026-12-31`.",
    ),
    "JS143": CodeText(
        "An address or a glob is malformed.",
        "An address is DOMAIN/KIND/NAME, for a consumer DOMAIN/consumer/STREAM/NAME.",
        "Write it as in `hub/stream/ORDERS`, `hub/stream/*` or `store-*/**`.",
    ),
    "JS144": CodeText(
        "A `moved`, `relocate` or `removed` entry contradicts the rest of the files.",
        "Its address is still declared, the target of a relocation is not declared, or both "
        "sides have different shapes.",
        "Remove the entry or the declaration, or correct the address.",
    ),
    "JS145": CodeText(
        "An override or a `depends_on` matches no resource.",
        "The address is misspelled, or the resource was removed.",
        "Correct the address, or remove the entry.",
    ),
    "JS146": CodeText(
        "A `copy_of` cannot be resolved.",
        "It names no declared stream, the entries form a circle, or the new stream would have "
        "the same subjects as its base.",
        "Name one declared stream, and give the new stream subjects of its own.",
    ),
    "JS147": CodeText(
        "A `moved` entry changes more than the domain.",
        "JetStream cannot rename an object in place.",
        "Let `moved` change only the domain. To rename a stream with its messages, use "
        "`relocate`.",
    ),
    "JS148": CodeText(
        "The files expand to more values than one workspace can have.",
        "Aliases, ranges and selectors multiply each other.",
        "Use narrower globs and ranges, or split the workspace.",
    ),
    "JS149": CodeText(
        "A `relocate` entry names something that cannot be relocated.",
        "A consumer moves only with its stream. A bucket or object store keeps its name, which is "
        "in the subjects of what it holds.",
        "The message says what to do instead.",
    ),
}  # fmt: skip
