"""The base class of all callbacks, and the loops that call it: of a Lightning Trainer, and of a loop without one.

`TrainerLoop` (`trainer.py`) hears the hooks of a Trainer. `BareLoop` (`bare.py`) hears what the user calls on `watch`,
or what `TransformersCallback` calls for the Trainer of Hugging Face. Both tell the callbacks the same (`loop.py`), and
each callback decides what it does about it (`callback.py`). Only those in `Loop.in_batch` hear of the backward passes,
the optimizer steps and the end of a batch. The way of a batch:

| the loop | each callback | what a subclass overrides |
|---|---|---|
| the run begins | `start`: selects modules for each stage, or says why it measures nothing | `_select`, `_attach` |
| `begin_training` | `open_training`: goes on from a checkpoint | `_begin_training`, `_resume` |
| `begin_batch` | `open_batch`: joins `Loop.in_batch` if the batch is due | `_wants`, `_begin_batch` |
| before and after a backward pass | | `_before_backward`, `_after_backward` |
| before an optimizer steps | | `_before_optimizer_step` |
| `end_batch` | `finish`: reads what earlier steps have measured | functions given to `_do_later` |
| | `close_batch`: takes off the hooks of the batch | `_end_batch` |
| an evaluation begins, ends | `open_evaluation`, `close_evaluation` | `_begin_evaluation`, `_end_evaluation` |
| `end_training`, `end_run` | takes off all hooks, and leaves | `_end_training`, `_leave`, `_saved` |

Each call goes through `HookboardCallback.hear`, which keeps errors away from training.
"""
