#!/usr/bin/env python3
"""The package as it is installed: by pip from the source tree, importable without anything else."""

import importlib.util
import os
import shutil
import subprocess
import sys

import support

from kvcache_client import library


def missing():
    return [m for m in ("pip", "setuptools", "wheel") if importlib.util.find_spec(m) is None]


class Package(support.Case):
    def python(self, code, folder, **env):
        """Runs code where only the standard library and `folder` can be imported from."""
        program = f"import sys; sys.path.insert(0, {folder!r})\n{code}"
        keep = {k: v for k, v in os.environ.items() if k != "KVCACHE_LIBRARY"}
        keep.update(env)
        return subprocess.run(
            [sys.executable, "-I", "-S", "-c", program], env=keep, capture_output=True, text=True
        )

    def test_installed_by_pip_from_the_tree(self):
        if missing():
            self.skipTest("not installed: " + ", ".join(missing()))
        tree = os.path.join(self.folder, "tree")
        target = os.path.join(self.folder, "target")
        shutil.copytree(os.path.join(support.ROOT, "client", "python"), tree)
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps",
             "--no-build-isolation", "--disable-pip-version-check", "--root-user-action=ignore",
             "--target", target, tree],
            check=True, stdout=subprocess.DEVNULL,
        )
        self.assertIn("py.typed", os.listdir(os.path.join(target, "kvcache_client")))
        shutil.copy(
            os.path.join(support.BUILD, "libkvcache.so.0"), os.path.join(target, "kvcache_client")
        )
        said = self.python("import kvcache_client as k; print(k.key(b'').hex())", target)
        self.assertEqual(said.stderr, "")
        self.assertEqual(said.stdout.strip(), "99aa06d3014798d86001c324468d497f")

    def test_imports_the_standard_library_only(self):
        code = (
            "before = set(sys.modules)\nimport kvcache_client\n"
            "new = {m.split('.')[0] for m in set(sys.modules) - before}\n"
            "print(sorted(new - set(sys.stdlib_module_names) - {'kvcache_client'}))"
            if sys.version_info >= (3, 10)
            else "import kvcache_client; print([])"
        )
        said = self.python(code, os.path.join(support.ROOT, "client", "python"))
        self.assertEqual((said.stderr, said.stdout), ("", "[]\n"))

    def test_a_library_that_is_not_there_is_named(self):
        """And who has named it: where the variable is not set, that is what helps."""
        code = (
            "import kvcache_client\nkvcache_client.library.FILE = 'libnowhere.so'\n"
            "try:\n    kvcache_client.version()\nexcept OSError as error:\n    print(error)"
        )
        folder = os.path.join(support.ROOT, "client", "python")
        said = self.python(code, folder, KVCACHE_LIBRARY="/nonexistent/lib.so")
        self.assertIn(
            "cannot load /nonexistent/lib.so (that is what KVCACHE_LIBRARY says)", said.stdout)
        said = self.python(code, folder)
        self.assertIn("cannot load libnowhere.so (set KVCACHE_LIBRARY to the path", said.stdout)

    def test_calls_of_other_structs_are_not_taken_for_those_of_this_package(self):
        other = os.path.join(self.folder, "libkvcache.so.0")
        with open(os.path.join(self.folder, "other.map"), "w") as f:
            f.write("KVCACHE_OTHER { global: kvc_*; local: *; };\n")
        calls = "".join(f"int {name}(void) {{ return 0; }}\n" for name in library._PROTOTYPES)
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-o", other, "-xc", "-",
             f"-Wl,--version-script={self.folder}/other.map"],
            input=calls, text=True, check=True,
        )
        code = (
            "import kvcache_client\ntry:\n    kvcache_client.version()\n"
            "except OSError as error:\n    print(error)"
        )
        folder = os.path.join(support.ROOT, "client", "python")
        said = self.python(code, folder, KVCACHE_LIBRARY=other)
        self.assertIn(f"of {library.SYMBOLS}", said.stdout)


support.main(__name__)
