#!/usr/bin/env python3
"""The package beside the C headers that it speaks for: layouts, functions, status codes, names."""

import ctypes
import os
import re
import subprocess

import support

from kvcache_client import errors, library, names, structs

# Programs that were compiled with these go on working: who grows one keeps the calls of KVCACHE_0
# for them (client/libkvcache.map). Of 64 bits.
SIZES = {
    "kvc_options": 40, "kvc_namespace": 96, "kvc_slice": 24, "kvc_memory": 32,
    "kvc_part_desc": 104, "kvc_lease": 56, "kvc_load_args": 88, "kvc_save_entry": 40,
    "kvc_save_args": 56, "kvc_outcome": 12, "kvc_figure": 16,
}

def read(path):
    with open(os.path.join(support.ROOT, path)) as f:
        return f.read()


class Header(support.Case):
    def test_structures_are_those_of_the_header(self):
        lines = []
        for c_name, kind in structs.C_NAMES.items():
            lines.append(f'printf("{c_name} %zu\\n", sizeof({c_name}));')
            for field, _ in kind._fields_:
                lines.append(
                    f'printf("{c_name}.{field} %zu %zu\\n", offsetof({c_name}, {field}), '
                    f"sizeof((({c_name} *)0)->{field}));"
                )
        source = os.path.join(self.folder, "sizes.c")
        with open(source, "w") as f:
            f.write(
                '#include <stdio.h>\n#include "client/kvcache.h"\nint main(void)\n{\n'
                + "\n".join(lines) + "\nreturn 0;\n}\n"
            )
        program = os.path.join(self.folder, "sizes")
        subprocess.run(
            ["gcc", "-DKVC_IN_TREE=1", "-I", support.ROOT, "-o", program, source], check=True
        )
        said = subprocess.run([program], capture_output=True, text=True, check=True).stdout
        wanted = []
        for c_name, kind in structs.C_NAMES.items():
            wanted.append(f"{c_name} {ctypes.sizeof(kind)}")
            for field, _ in kind._fields_:
                at = getattr(kind, field)
                wanted.append(f"{c_name}.{field} {at.offset} {at.size}")
        self.assertEqual(said.splitlines(), wanted)

    def test_structures_of_the_first_symbols_keep_their_size(self):
        self.assertEqual(library.SYMBOLS, "KVCACHE_0")
        self.assertEqual({name: ctypes.sizeof(kind) for name, kind in structs.C_NAMES.items()}, SIZES)

    def test_every_field_of_the_header_is_there(self):
        header = re.sub(r"/\*.*?\*/", "", read("client/kvcache.h"), flags=re.S)
        for c_name, kind in structs.C_NAMES.items():
            body = re.search(rf"typedef struct {c_name} {{(.*?)\n}} {c_name};", header, re.S)
            found = []
            for declaration in body.group(1).split(";"):
                found += re.findall(r"(\w+)(?:\[\w+\])?\s*(?=,|$)", declaration.strip())
            self.assertEqual(found, [f for f, _ in kind._fields_], c_name)

    def test_every_function_of_the_manual_is_declared(self):
        said = set(re.findall(r"KVC_API [^(;]*?(kvc_\w+)\(", read("client/kvcache.h")))
        self.assertEqual(said, set(library._PROTOTYPES))

    def test_every_status_has_its_exception(self):
        said = {int(n) for n in re.findall(r"KVC_E_\w+ = (\d+)", read("proto/status.h"))}
        self.assertEqual(said, set(errors.BY_STATUS))
        for status, kind in errors.BY_STATUS.items():
            self.assertIs(type(errors.error_of(status, "text")), kind)
        self.assertIs(type(errors.error_of(31, "")), errors.RequestError)
        self.assertIs(type(errors.error_of(63, "")), errors.SessionError)
        self.assertIs(type(errors.error_of(255, "")), errors.SystemError_)

    def test_limits_are_those_of_the_header(self):
        header = read("proto/limits.h")
        for name in ("KEY_BYTES", "NAMESPACE_BYTES", "TOKEN_BYTES", "KEYS_MAX"):
            said = re.search(rf"#define KVC_{name}\s+(\d+)u", header).group(1)
            self.assertEqual(int(said), getattr(structs, name))
        said = re.search(r"#define LOADS_MAX\s+(\d+)u", read("client/client.h")).group(1)
        self.assertEqual(int(said), structs.LOADS_MAX)


class Names(support.Case):
    def F42_fold_vectors_of_the_c_tests(self):
        text = read("tests/unit/test_proto_key.c")
        vectors = re.findall(r'\{(\d+), (\d+), "([0-9a-f]{32})"\}', text)
        self.assertGreaterEqual(len(vectors), 7)
        for n, first, wanted in vectors:
            data = bytes(int(first) + i for i in range(int(n)))
            self.assertEqual(names.key(data).hex(), wanted)
        both = names.keys([b"", bytes(16)])
        self.assertEqual(both, names.key(b"") + bytes(16))

    def F42_digest_vectors_of_the_c_tests(self):
        text = read("tests/unit/test_proto_key.c")
        digests = re.findall(r'digest_of\(&(\w+), text\),\s+"([0-9a-f]{64})"', text)
        example = re.search(r"example = \{(.*?)\};", text, re.S).group(1)
        fields = {
            name: value[1:-1] if value.startswith('"') else int(value)
            for name, value in re.findall(r'\.(\w+) = ("[^"]*"|\d+)', example)
        }
        spaces = {
            "nothing": names.Namespace(),
            "model": names.Namespace(model="m"),
            "example": names.Namespace(**fields),
        }
        self.assertEqual({n for n, _ in digests}, set(spaces))
        for name, wanted in digests:
            self.assertEqual(spaces[name].digest().hex(), wanted)

    def test_an_empty_string_is_not_none(self):
        self.assertNotEqual(names.Namespace(model="").digest(), names.Namespace().digest())

    def test_malformed_names_are_refused(self):
        with self.assertRaises(ValueError):
            names.join(b"too short")
        with self.assertRaises(ValueError):
            names.join([bytes(16), bytes(15)])
        with self.assertRaises(ValueError):
            names.Namespace(block_tokens=-1).digest()
        self.assertEqual(names.join([bytes(16), bytes(16)]), bytes(32))
        self.assertEqual(names.join(()), b"")


support.main(__name__)
