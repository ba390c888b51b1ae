"""What a wheel has besides the modules: the examples and the glossary, which stand outside the package in a checkout.

Everything else about the distribution is in pyproject.toml. Of the examples only the kinds of files below are taken,
so that a ledger or a release that somebody made beside them never leaves the machine.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
EXAMPLES = ("*.sql", "*.ipynb", "*.toml", "*.md", "tpch/*.sql", "data/*.parquet", "data/*.csv", "data/*.md")


class BuildWithExamples(build_py):
    """Copies them into the package that is built; an editable installation reads them from the checkout."""

    def run(self):
        super().run()
        if self.editable_mode:
            return
        package = Path(self.build_lib) / "dpsql"
        examples = ROOT / "sql_examples"
        pairs = [
            (file, Path("examples", file.relative_to(examples))) for kind in EXAMPLES for file in examples.glob(kind)
        ]
        for source, place in [*pairs, (ROOT / "docs" / "glossary.md", Path("glossary.md"))]:
            (package / place).parent.mkdir(parents=True, exist_ok=True)
            self.copy_file(str(source), str(package / place))


setup(cmdclass={"build_py": BuildWithExamples})
