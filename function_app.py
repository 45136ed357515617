"""The Azure Functions app: one blueprint per half of the product. No I/O and no logic here."""

import azure.functions as func

from scaling.functions import blueprint as scaling

app = func.FunctionApp()
app.register_functions(scaling)
