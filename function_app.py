"""The Azure Functions app: one blueprint per half of the product. No I/O and no logic here."""

import azure.functions as func

from consumer.functions import blueprint as consumer
from scaling.functions import blueprint as scaling

app = func.FunctionApp()
app.register_functions(scaling)
app.register_functions(consumer)
