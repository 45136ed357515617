"""What the kinds of plans that function apps run on refuse, as published and as users report it."""

FLEX = "FlexConsumption"

REFUSED_SETTINGS = {
    *("ENABLE_ORYX_BUILD", "FUNCTIONS_EXTENSION_VERSION", "FUNCTIONS_MAX_HTTP_CONCURRENCY"),
    *("FUNCTIONS_WORKER_DYNAMIC_CONCURRENCY_ENABLED", "FUNCTIONS_WORKER_PROCESS_COUNT"),
    *("FUNCTIONS_WORKER_RUNTIME", "FUNCTIONS_WORKER_RUNTIME_VERSION"),
    *("SCM_DO_BUILD_DURING_DEPLOYMENT", "WEBSITE_CONTENTAZUREFILECONNECTIONSTRING"),
    *("WEBSITE_CONTENTOVERVNET", "WEBSITE_CONTENTSHARE", "WEBSITE_DNS_SERVER"),
    *("WEBSITE_MAX_DYNAMIC_APPLICATION_SCALE_OUT", "WEBSITE_NODE_DEFAULT_VERSION"),
    *("WEBSITE_RUN_FROM_PACKAGE", "WEBSITE_SKIP_CONTENTSHARE_VALIDATION", "WEBSITE_VNET_ROUTE_ALL"),
}
"""App settings that Flex Consumption refuses: https://learn.microsoft.com/azure/azure-functions/functions-app-settings"""

REFUSED_SITE_CONFIG = {
    "alwaysOn": "scaleAndConcurrency.alwaysReady",  # 4
    "ftpsState": "publishing by user name and password is off, for FTP too",  # 1, 2
    "functionAppScaleLimit": "scaleAndConcurrency.maximumInstanceCount",  # 3
    "functionsRuntimeScaleMonitoringEnabled": "the platform's own",  # 1, 2
    "linuxFxVersion": "runtime",  # 4
    "minimumElasticInstanceCount": "scaleAndConcurrency.alwaysReady",  # 4
    "netFrameworkVersion": "runtime",  # 1, 2
    "numberOfWorkers": "the platform's own",  # 4
    "preWarmedInstanceCount": "scaleAndConcurrency.alwaysReady",  # 2
    "pythonVersion": "runtime",  # as linuxFxVersion
    "use32BitWorkerProcess": "the platform's own",  # 1, 2
    "vnetRouteAllEnabled": "all calls go through the network anyway",  # as WEBSITE_VNET_ROUTE_ALL
    "windowsFxVersion": "runtime",  # 4
}
"""What Flex Consumption refuses in siteConfig, with error 51021 of Resource Manager ("site configuration properties ... for
Flex Consumption sites is invalid"), and what says the same there. In whose deployments each was named:
azure-pipelines-tasks 21032 (1), azure-cli 31414 (2), azure-functions-host 10643 (3), and
terraform-azurerm-avm-res-web-site 345 (4), all on GitHub.
"""

DELEGATION = {FLEX: "Microsoft.App/environments"}
"""What the subnet of an app has to be delegated to, where it is not Microsoft.Web/serverFarms."""
