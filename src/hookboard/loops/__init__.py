"""The base class of all callbacks, and the loops that call it: of a Lightning Trainer, and of a loop without one.

`TrainerLoop` (`trainer.py`) hears the hooks of a Trainer. `BareLoop` (`bare.py`) hears what the user calls on `watch`,
or what `TransformersCallback` calls for the Trainer of Hugging Face. Both tell the callbacks the same events
(`loop.py`), and each callback decides what it does about them (`callback.py`).

What happens in a batch:

1. `Loop.begin_batch` asks each callback whether the batch is due (`_wants`). Those for which it is, and those that see
   every step, join `Loop.in_batch`; nobody else hears of the batch.
2. They put up or switch on their hooks (`_begin_batch`), and hear of each backward pass and of each optimizer's step.
3. In training, `Loop.end_batch` first has all callbacks read what earlier steps have measured (`finish`). Then it ends
   the batch: hooks that only measure are taken off or switched off, and what was measured is sent (`_end_batch`,
   `_do_later`).

`callback.py` begins with all events of a run. Events go through `HookboardCallback.call_safely`: an error ends the
callback, not the training, unless the callback changes what is trained (`may_stop_the_run`).
"""
