"TRL's own trainer makes steps on the tasks and servers of this project."

import pytest
from conftest import needs

from mcp_grpo.client.pool import Pool
from mcp_grpo.client.spec import embedded_specs
from mcp_grpo.config import asset
from mcp_grpo.interop.trl import trl_parts
from mcp_grpo.task import read_tasks


@pytest.mark.filterwarnings("ignore")
def test_three_steps_of_its_trainer(tmp_path, monkeypatch):
    needs("trl")
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer
    from trl.chat_template_utils import qwen3_chat_template

    tokenizer = AutoTokenizer.from_pretrained(asset("tiny"))
    own, tokenizer.chat_template = tokenizer.chat_template, qwen3_chat_template  # TRL reads calls as with this one
    tasks = [task for task in read_tasks(asset("tasks/train.json")) if task.family == "lookup"][:6]
    model = AutoModelForCausalLM.from_pretrained(asset("tiny"))
    with Pool(embedded_specs(["polygon", "fmp", "slack"])) as pool:
        trainer = GRPOTrainer(
            model,
            args=GRPOConfig(
                output_dir=str(tmp_path),
                max_steps=3,
                per_device_train_batch_size=4,
                num_generations=4,
                max_completion_length=96,
                learning_rate=1e-3,
                report_to="none",
                use_cpu=True,
                logging_steps=1,
            ),
            processing_class=tokenizer,
            **trl_parts(tasks, pool),
        )
        assert "{%- if tools %}" in own and "(tools and" in own
        # the packaged model knows its own template, and reads the tools in the task's prompt
        trainer.chat_template = own.replace("{%- if tools %}", "{%- if false %}").replace("(tools and", "(false and")
        trainer.train()
        assert pool.stats()["leases"] == 0  # every episode gave its lease back
    log = [entry for entry in trainer.state.log_history if "rewards/episode_reward/mean" in entry]
    assert len(log) == 3, trainer.state.log_history
    assert sum(entry["tools/call_frequency"] for entry in log) > 0.5, log
    assert max(entry["rewards/episode_reward/mean"] for entry in log) > 0.3, log
