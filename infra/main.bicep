// Tidemark on Azure: a resource group with the function app and what it needs, and the app's roles on the
// plan it scales and on the Service Bus namespace it reads, wherever those are. See docs/deploying.md.
targetScope = 'subscription'

@description('Name of the azd environment; part of the resource names, and the tag azd finds them by.')
@minLength(1)
@maxLength(64)
param environmentName string

@description('Region of everything created here; Flex Consumption has to be offered there.')
@minLength(1)
@metadata({
  azd: {
    type: 'location'
  }
})
param location string

@description('Resource group to create or to use; empty for rg-<environment>.')
param resourceGroupName string = ''

@description('Full resource id of the App Service Plan to scale: the app setting ORDERS_PLAN_ID of tidemark.toml.')
@minLength(1)
param ordersPlanId string

@description('Full resource id of the Service Bus namespace with the backlog: the connection OrdersServiceBus of tidemark.toml, which also names topic and subscription.')
@minLength(1)
param ordersServiceBusNamespaceId string

@description('Whether to give the app its roles on that plan, its resource group and that namespace. With false somebody else has to; docs/deploying.md has the commands.')
param assignTargetRoles bool = true

@description('Python of the app, one that pyproject.toml supports.')
@allowed([
  '3.11'
  '3.12'
  '3.13'
])
param pythonVersion string = '3.11'

@description('When backlogs are read: NCRONTAB with seconds, in UTC.')
param collectSchedule string = '0 * * * * *'

@description('When requested is compared with reached and the log is pruned: NCRONTAB with seconds, in UTC.')
param verifySchedule string = '30 * * * * *'

@description('How long decisions are kept in the table ScalingLog, such as 30d.')
param scalingLogRetention string = '30d'

@description('Keep one instance warm of each queue function, at a price. docs/deploying.md says when.')
param alwaysReady bool = false

@description('Further app settings by name: connections and plan ids of further targets, TIDEMARK_CONFIG. Not for secrets.')
param additionalAppSettings object = {}

var token = toLower(uniqueString(subscription().id, environmentName, location))
var tags = {
  'azd-env-name': environmentName
}

// /subscriptions/<2>/resourceGroups/<4>/providers/<6>/<7>/<8>
var plan = split(ordersPlanId, '/')
var serviceBus = split(ordersServiceBusNamespaceId, '/')

resource group 'Microsoft.Resources/resourceGroups@2024-03-01' = {
  name: empty(resourceGroupName) ? 'rg-${environmentName}' : resourceGroupName
  location: location
  tags: tags
}

module identity './app/identity.bicep' = {
  name: 'identity'
  scope: group
  params: {
    name: 'id-tidemark-${token}'
    location: location
    tags: tags
  }
}

module monitoring './app/monitoring.bicep' = {
  name: 'monitoring'
  scope: group
  params: {
    workspaceName: 'log-tidemark-${token}'
    applicationInsightsName: 'appi-tidemark-${token}'
    location: location
    tags: tags
  }
}

module storage './app/storage.bicep' = {
  name: 'storage'
  scope: group
  params: {
    name: 'sttidemark${token}'
    deploymentContainerName: 'app-package'
    location: location
    tags: tags
  }
}

module roles './app/rbac.bicep' = {
  name: 'roles'
  scope: group
  params: {
    storageAccountName: storage.outputs.name
    applicationInsightsName: monitoring.outputs.applicationInsightsName
    principalId: identity.outputs.principalId
  }
}

module planRoles './app/rbac-plan.bicep' = if (assignTargetRoles) {
  name: 'tidemark-plan-roles-${token}'
  scope: resourceGroup(plan[2], plan[4])
  params: {
    planName: plan[8]
    principalId: identity.outputs.principalId
  }
}

module serviceBusRoles './app/rbac-service-bus.bicep' = if (assignTargetRoles) {
  name: 'tidemark-service-bus-roles-${token}'
  scope: resourceGroup(serviceBus[2], serviceBus[4])
  params: {
    namespaceName: serviceBus[8]
    principalId: identity.outputs.principalId
  }
}

module functions './app/functions.bicep' = {
  name: 'functions'
  scope: group
  params: {
    name: 'func-tidemark-${token}'
    planName: 'plan-tidemark-${token}'
    location: location
    tags: tags
    pythonVersion: pythonVersion
    alwaysReady: alwaysReady
    storageAccountName: storage.outputs.name
    deploymentContainerName: storage.outputs.deploymentContainerName
    applicationInsightsName: monitoring.outputs.applicationInsightsName
    identityId: identity.outputs.id
    identityClientId: identity.outputs.clientId
    ordersPlanId: ordersPlanId
    ordersServiceBusNamespaceName: serviceBus[8]
    collectSchedule: collectSchedule
    verifySchedule: verifySchedule
    scalingLogRetention: scalingLogRetention
    additionalAppSettings: additionalAppSettings
  }
  // The host opens its storage when it starts, and gives up for a while when it may not.
  dependsOn: [
    roles
  ]
}

@description('Resource group of the app.')
output AZURE_RESOURCE_GROUP string = group.name

@description('Name of the function app.')
output AZURE_FUNCTION_NAME string = functions.outputs.name

@description('Name of the storage account with the queues, the state and the decision log.')
output AZURE_STORAGE_ACCOUNT_NAME string = storage.outputs.name

@description('Object id of the identity that needs the roles of docs/deploying.md on every further target.')
output TIDEMARK_PRINCIPAL_ID string = identity.outputs.principalId

@description('Client id of that identity, for <connection>__clientId of further connections.')
output TIDEMARK_CLIENT_ID string = identity.outputs.clientId

@description('Open to everybody; 200 while configuration and state store are in order.')
output TIDEMARK_HEALTH_URL string = '${functions.outputs.baseUrl}/api/health'

@description('The dashboard; it asks for a function key (?code=...).')
output TIDEMARK_DASHBOARD_URL string = '${functions.outputs.baseUrl}/api/dashboard'
