"""Recipe for Spack: copy it to packages/py-pfo-fs/package.py of a repository of your site."""

from spack.package import *


class PyPfoFs(PythonPackage):
    """Saves energy in pipeline-parallel training by planning GPU clocks, through nothing but a shared directory."""

    homepage = "https://arxiv.org/abs/2312.06902"

    license("Apache-2.0")

    # No release has a public address yet: `spack dev-build py-pfo-fs@main` in a checkout, or `git = ...` here.
    version("main", branch="main")

    variant("torch", default=False, description="With torch, for training; the daemon does not need it")

    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-hatchling@1.25:", type="build")
    for requirement in (
        "py-filelock@3.30:",
        "py-highspy@1.11:",
        "py-jinja2@3.1:",
        "py-msgspec@0.19:",
        "py-numpy@1.24:",
        "py-nvidia-ml-py@12:",
        "py-pandas@2.2:",
        "py-prometheus-client@0.20:",
        "py-pydantic@2.8:",
        "py-pydantic-settings@2.4:",
        "py-pyyaml@6:",
        "py-rich@13:",
        "py-typer@0.19:",
        "py-watchdog@4:",
    ):
        depends_on(requirement, type=("build", "run"))
    depends_on("py-torch@2.6:", type=("build", "run"), when="+torch")
