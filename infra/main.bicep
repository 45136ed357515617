// Tidemark on Azure: a resource group with the function app and what it needs, where wished the consumer, and the
// roles of both on what exists already: plan, Service Bus namespace, event hub, Cosmos DB. See docs/deploying.md.
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

@description('Whether to give the app its roles on what exists already. With false somebody else has to; docs/deploying.md has the commands.')
param assignTargetRoles bool = true

@description('Object id of who may use the command line on this app and read its log; empty for nobody. azd knows the id of whoever is signed in.')
param operatorPrincipalId string = ''

@description('What that id is of; a group is best.')
@allowed([
  'User'
  'Group'
  'ServicePrincipal'
])
param operatorPrincipalType string = 'User'

@description('Whether they may also give orders, or read only.')
param operatorMayOrder bool = false

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

@description('Keep one instance warm of each function that a queue or the event hub starts, at a price. docs/deploying.md says when.')
param alwaysReady bool = false

@description('Memory of an instance in MB. One minute of work for tens of targets takes far less than the default.')
@allowed([
  512
  2048
  4096
])
param instanceMemoryMB int = 2048

@description('Most instances the platform may run of each function; 40 is the least it accepts. Decisions are guarded by ETags, so any number is safe. With the trigger, rates of all instances together are shared out among so many.')
@minValue(40)
@maxValue(1000)
param maximumInstanceCount int = 40

@description('Full resource id of the event hub to consume, or whose lag is to be watched; empty for none. It makes the connection EventHubConnection.')
param eventHubId string = ''

@description('Consumer group of that hub, which nobody else reads with.')
param eventHubConsumerGroup string = 'tidemark'

@description('Full resource id of the Cosmos DB container (API for NoSQL) that the consumer writes to; empty for none. It makes the connection CosmosConnection.')
param cosmosContainerId string = ''

@description('Whether the app may also set the throughput of that Cosmos DB account: the scaler cosmos_throughput.')
param scaleCosmosThroughput bool = false

@description('How the function app consumes: not at all, in slices by a timer, or by the Event Hubs trigger.')
@allowed([
  'off'
  'slices'
  'trigger'
])
param consumerHosting string = 'off'

@description('With slices: when one begins. NCRONTAB with seconds, in UTC.')
param consumeSchedule string = '0 * * * * *'

@description('Seconds a consumer may take to finish what it began when it is told to stop.')
@minValue(1)
@maxValue(570)
param consumerShutdown int = 25

@description('The consumer as processes in Container Apps: repository and tag of its image, such as tidemark-consumer:1; empty for none.')
param consumerImage string = ''

@description('Full resource id of the container registry with that image.')
param consumerRegistryId string = ''

@description('Instances in Container Apps, each with a set of processes.')
@minValue(1)
@maxValue(300)
param consumerInstances int = 1

@description('Processes of an instance. Each gets a core and 2 GiB; the Consumption profile ends at four.')
@minValue(1)
@maxValue(4)
param consumerProcesses int = 1

@description('Further settings by name, of the app and of the consumer: connections and ids of further targets, TIDEMARK_CONFIG, EVENTHUB_RATELIMIT. Not for secrets.')
param additionalAppSettings object = {}

var token = toLower(uniqueString(subscription().id, environmentName, location))
var tags = {
  'azd-env-name': environmentName
}

var groupName = empty(resourceGroupName) ? 'rg-${environmentName}' : resourceGroupName

// /subscriptions/<2>/resourceGroups/<4>/providers/<6>/<7>/<8>/<9>/<10>/<11>/<12>
// What is not given is something in the plan's group that nothing is deployed to. The parts have to exist, and so has
// the group, which Resource Manager looks for even where the condition of a module is false; the app's own is new.
var plan = split(ordersPlanId, '/')
var nothing = '/subscriptions/${plan[2]}/resourceGroups/${plan[4]}/providers/none/none/none/none/none/none/none'
var serviceBus = split(ordersServiceBusNamespaceId, '/')
var eventHub = split(empty(eventHubId) ? nothing : eventHubId, '/')
var cosmos = split(empty(cosmosContainerId) ? nothing : cosmosContainerId, '/')
var registry = split(empty(consumerRegistryId) ? nothing : consumerRegistryId, '/')

// The consumer has the same settings in the function app and as a process.
var hostingSettings = {
  CONSUMER_HOSTING: consumerHosting
  CONSUME_SCHEDULE: consumeSchedule
  CONSUMER_SHUTDOWN: '${consumerShutdown}s'
  CONSUMER_MAXIMUM_INSTANCES: '${maximumInstanceCount}'
}
var eventHubSettings = {
  EventHubConnection__fullyQualifiedNamespace: '${eventHub[8]}.servicebus.windows.net'
  EventHubConnection__credential: 'managedidentity'
  EventHubConnection__clientId: identity.outputs.clientId
  EVENTHUB_NAME: eventHub[10]
  EVENTHUB_CONSUMERGROUP: eventHubConsumerGroup
}
var cosmosSettings = {
  CosmosConnection__accountEndpoint: 'https://${cosmos[8]}.documents.azure.com:443/'
  CosmosConnection__credential: 'managedidentity'
  CosmosConnection__clientId: identity.outputs.clientId
  COSMOS_DATABASE: cosmos[10]
  COSMOS_CONTAINER: cosmos[12]
}
// What is given by name wins.
var furtherSettings = union(hostingSettings, empty(eventHubId) ? {} : eventHubSettings, empty(cosmosContainerId) ? {} : cosmosSettings, additionalAppSettings)

resource group 'Microsoft.Resources/resourceGroups@2024-03-01' = {
  name: groupName
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

module operatorRoles './app/rbac-operator.bicep' = if (!empty(operatorPrincipalId)) {
  name: 'operator-roles'
  scope: group
  params: {
    storageAccountName: storage.outputs.name
    principalId: operatorPrincipalId
    principalType: operatorPrincipalType
    mayOrder: operatorMayOrder
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

module eventHubRoles './app/rbac-event-hub.bicep' = if (assignTargetRoles && !empty(eventHubId)) {
  name: 'tidemark-event-hub-roles-${token}'
  scope: resourceGroup(eventHub[2], eventHub[4])
  params: {
    namespaceName: eventHub[8]
    hubName: eventHub[10]
    principalId: identity.outputs.principalId
  }
}

module cosmosRoles './app/rbac-cosmos.bicep' = if (assignTargetRoles && !empty(cosmosContainerId)) {
  name: 'tidemark-cosmos-roles-${token}'
  scope: resourceGroup(cosmos[2], cosmos[4])
  params: {
    accountName: cosmos[8]
    databaseName: cosmos[10]
    containerName: cosmos[12]
    scaleThroughput: scaleCosmosThroughput
    principalId: identity.outputs.principalId
  }
}

module registryRoles './app/rbac-registry.bicep' = if (assignTargetRoles && !empty(consumerImage)) {
  name: 'tidemark-registry-roles-${token}'
  scope: resourceGroup(registry[2], registry[4])
  params: {
    registryName: registry[8]
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
    instanceMemoryMB: instanceMemoryMB
    maximumInstanceCount: maximumInstanceCount
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
    consumerHosting: consumerHosting
    furtherSettings: furtherSettings
  }
  // The host opens its storage when it starts, and gives up for a while when it may not.
  dependsOn: [
    roles
  ]
}

module consumerApp './app/consumer-app.bicep' = if (!empty(consumerImage)) {
  name: 'consumer'
  scope: group
  params: {
    name: 'ca-tidemark-${token}'
    environmentName: 'cae-tidemark-${token}'
    location: location
    tags: tags
    image: '${registry[8]}.azurecr.io/${consumerImage}'
    registryServer: '${registry[8]}.azurecr.io'
    instances: consumerInstances
    processes: consumerProcesses
    shutdown: consumerShutdown
    storageAccountName: storage.outputs.name
    workspaceName: monitoring.outputs.workspaceName
    applicationInsightsName: monitoring.outputs.applicationInsightsName
    identityId: identity.outputs.id
    identityClientId: identity.outputs.clientId
    settings: furtherSettings
  }
  // Without the right to pull there is no instance, and a consumer that may not read ends with an error.
  dependsOn: [
    roles
    eventHubRoles
    cosmosRoles
    registryRoles
  ]
}

@description('Resource group of the app.')
output AZURE_RESOURCE_GROUP string = group.name

@description('Name of the function app.')
output AZURE_FUNCTION_NAME string = functions.outputs.name

@description('Name of the container app with the consumer; empty without one.')
output AZURE_CONSUMER_APP_NAME string = empty(consumerImage) ? '' : 'ca-tidemark-${token}'

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
