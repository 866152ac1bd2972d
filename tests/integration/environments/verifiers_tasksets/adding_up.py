"""A taskset as its authors would write it for verifiers: data, a server of tools, a reward, a metric."""

import verifiers.v1 as vf

__all__ = ["AddingUpTaskset"]


class Sum(vf.TaskData):
    answer: str


class Calculator(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = "calc"

    @vf.tool
    def add(self, a: int, b: int) -> str:
        """The sum of two numbers."""
        return str(a + b)


class AddingUpConfig(vf.TasksetConfig):
    tools: bool = True


class AddingUpTask(vf.Task[Sum, vf.State, vf.TaskConfig]):
    @vf.reward(weight=2.0)
    async def right(self, trace: vf.Trace) -> float:
        if self.data.answer == "0":
            raise ValueError("the scorer broke")
        return float(self.data.answer in trace.last_reply)

    @vf.metric
    async def turns(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)


class AddingUpTaskset(vf.Taskset[AddingUpTask, AddingUpConfig]):
    def load(self) -> list[AddingUpTask]:
        print("a taskset may print")
        return [
            AddingUpTask(Sum(name=f"{a}+{b}", prompt=f"What is {a}+{b}?", answer=str(a + b)), self.config.task)
            for a in range(3)
            for b in range(3)
        ]

    @classmethod
    def toolsets(cls, config: AddingUpConfig) -> list[vf.Toolset]:
        return [Calculator(vf.ToolsetConfig())] if config.tools else []


if __name__ == "__main__":
    Calculator.run()
