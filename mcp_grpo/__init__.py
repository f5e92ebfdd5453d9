__version__ = "0.1.0"


def __getattr__(name: str):
    "`Run`, imported when it is first asked for, since it needs most of the package."
    if name == "Run":
        from mcp_grpo.run import Run
        return Run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
