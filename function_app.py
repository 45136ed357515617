"""The Azure Functions app: its blueprints. No I/O and no logic here."""

import os

import azure.functions as func

from consumer.web.functions import blueprint as consumer
from consumer.web.http_functions import blueprint as consumer_http
from scaling.web.functions import blueprint as scaling
from tidemark.foundation.log.process import quiet_sdks

quiet_sdks(os.environ)  # the worker has set up its logging before it imports this

app = func.FunctionApp()
app.register_functions(scaling)
app.register_functions(consumer)
app.register_functions(consumer_http)
