"""A small host for Azure Functions apps in Python: timers, storage queues, event hubs, HTTP.

``func start`` is the reference; this runs where func cannot be had: in tests, in the demo, in build agents without
downloads. It is driven by the app's own decorators.

    python -m devstack.function_host --root DIR --port 7071

    host = FunctionHost(app, settings={...}, host_json={...}, storage_connection="...")
    await host.start()
    ...
    await host.stop()

Kept as the real host does it: at-least-once queue delivery with a dequeue count, poison queues, batches of batchSize
asked for while no more than newBatchThreshold messages are at work; one firing of a timer at a time, while a run through
the admin API may overlap it; synchronous functions in a thread pool of PYTHON_THREADPOOL_THREAD_COUNT threads,
asynchronous ones on the event loop, where blocking code blocks every other function, timer and request; a method a
route does not list is answered 404, not 405; get_functions() is called once, so an app object serves one host.

What differs from the real host:

* Bindings: timerTrigger, queueTrigger, eventHubTrigger, httpTrigger, queue and http outputs. Others are refused at
  start.
* One process: timers take no lock, so two hosts fire twice. No schedule status is stored: a firing missed while no host
  ran stays missed, and TimerRequest.schedule_status is always empty, which the real host also does at times.
* A message at work is hidden for visibilityTimeout (600 s if that is 0) and renewed at half time. The real host hides
  it for 600 s whatever the setting, which it uses only for the delay before a retry; here both are short in tests.
* A string put into a queue output is sent as it is. The real host splits one that is a JSON array into messages and
  reformats one that is a JSON object; lists of strings are safe in both.
* With --speed, timers go by a clock that runs faster, and so do the decisions of Tidemark's functions; queues do not.
* Keys: one admin key and one function key, no per-function keys. Without any key nothing is enforced.
* Event hubs: batches only (cardinality many), bodies as bytes; of retry policies fixed_delay only. Partitions are
  balanced by the SDK's processor. Checkpoints are where the real host keeps them, in its layout; like it, a batch
  whose retries have ended is checkpointed though it failed. minEventBatchSize and batchCheckpointFrequency are not
  there. A run by hand passes one event without metadata.
* functionTimeout, retry policies of other triggers, dynamic concurrency, route constraints and identity connections are not there.
* Annotations are not checked as the worker does; tests/functions runs the worker's own library for that.
"""

from devstack.function_host.host import FunctionHost
from devstack.function_host.invocation import InvocationRecord
from devstack.function_host.settings import HostError

__all__ = ["FunctionHost", "HostError", "InvocationRecord"]
