// Tidemark on Azure: a resource group with the function app and what it needs, where wished the consumer and a virtual
// network, and the roles of both on what exists already: any number of plans, namespaces, hubs, storage accounts and
// containers, in any resource group and subscription of the tenant. See docs/deploying.md.
targetScope = 'subscription'

// What a policy names as %setting%: a resource that is scaled. Without a setting its id stands in tidemark.toml itself.
type target = {
  id: string
  setting: string?
}

// What a policy names as connection: a resource that is read. `reads` is of storage accounts: queues (the default),
// blobs (checkpoints), tables (telemetry of consumers).
type source = {
  id: string
  connection: string
  reads: array?
}

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

@description('App Service Plans to scale. An entry with an empty id is left out, here and below.')
param plans target[] = []

@description('Cosmos DB containers or databases to scale, besides the one that the consumer writes to.')
param cosmosContainers target[] = []

@description('Other resources to scale: container apps, scale sets of virtual machines, namespaces of Event Hubs and of Service Bus Premium.')
param resources target[] = []

@description('Resources whose platform metrics are read, of any type. The role is given on their resource groups.')
param metricResources target[] = []

@description('Service Bus namespaces whose backlogs are read.')
param serviceBusNamespaces source[] = []

@description('Event hubs whose lag is read, besides the one that the consumer reads.')
param eventHubs source[] = []

@description('Storage accounts whose queues, checkpoints or telemetry are read, besides that of the app.')
param storageAccounts source[] = []

@description('Whether to give the app its roles on what exists already. With false somebody else has to; docs/deploying/roles.md has the commands.')
param assignTargetRoles bool = true

@description('Whether to make and give roles of our own where the built-in ones allow far more than is used. Making them takes the right to write role definitions in every subscription concerned.')
param customRoles bool = true

@description('Give Azure Service Bus Data Owner all the same: for the case that the role of our own is refused the counts.')
param serviceBusDataOwner bool = false

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

@description('Client id of an app registration of Microsoft Entra ID: people sign in, and its roles Tidemark.Reader and Tidemark.Operator open page and API. Empty for function keys. docs/deploying/people.md makes one.')
param signInClientId string = ''

@description('Id of its tenant; empty for that of the subscription.')
param signInTenantId string = ''

@description('Client ids of the programs whose tokens for it are accepted: the Azure CLI, which the command line signs in with, and managed identities that have a role.')
param signInClientApplications array = [
  '04b07795-8ddb-461a-bbee-02f9e1bf7b46'
]

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

@description('Plan that the app itself runs on. Elastic Premium and Dedicated have instances that never go to sleep; docs/deploying/plan-and-network.md has the differences.')
@allowed([
  'FlexConsumption'
  'ElasticPremium'
  'Dedicated'
])
param hostingPlan string = 'FlexConsumption'

@description('Size of an instance of that plan; empty for EP1 of Elastic Premium and P0v3 of Dedicated. Flex Consumption has instanceMemoryMB instead.')
param planSku string = ''

@description('Elastic Premium: instances that always run. Dedicated: instances. Flex Consumption has alwaysReady instead.')
@minValue(1)
@maxValue(30)
param planInstances int = 1

@description('Dedicated: a Tidemark elsewhere scales this plan. The template then makes no change to a plan that exists, so that provisioning does not set its instances back. Leave it false for the first provisioning, which makes the plan.')
param planIsScaled bool = false

@description('Most instances of the app that may run at once, among which the consumer shares out the rate of its fleet (CONSUMER_MAXIMUM_INSTANCES); 0 for what the plan allows. With planIsScaled: the maximum of the policy that scales it.')
@minValue(0)
@maxValue(1000)
param consumerMaximumInstances int = 0

@description('Elastic Premium: most instances of the app. Flex Consumption has maximumInstanceCount instead.')
@minValue(1)
@maxValue(100)
param elasticInstanceLimit int = 5

@description('Flex Consumption: keep one instance warm of each function that a queue or the event hub starts, at a price. docs/deploying.md says when.')
param alwaysReady bool = false

@description('Flex Consumption: memory of an instance in MB. One minute of work for tens of targets takes far less than the default.')
@allowed([
  512
  2048
  4096
])
param instanceMemoryMB int = 2048

@description('Flex Consumption: most instances the platform may run of each function; 40 is the least it accepts. Decisions are guarded by ETags, so any number is safe. With the trigger, rates of all instances together are shared out among so many.')
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

@description('The consumer as processes in Container Apps: repository and tag of its image, such as tidemark-consumer:0.2.0; empty for none.')
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

@description('Make the alert rules of docs/azure-portal.md, which cost some dollars a month.')
param alerts bool = true

@description('Make the charts of the workbook a dashboard of Grafana in the portal, too.')
param grafana bool = false

@description('Who is told of alerts by e-mail: addresses with commas between them; empty for nobody, they show in the portal all the same.')
param alertEmails string = ''

@description('Events behind which a consumer raises an alert.')
@minValue(1)
param alertLag int = 10000

@description('Make a virtual network, reach storage through private endpoints in it, and close the public way to storage.')
param privateNetwork bool = false

@description('Address range of that network, a /24 or larger; three subnets of its first fourths are made.')
param networkAddressPrefix string = '10.90.0.0/24'

@description('Instead of making a network: id of an existing subnet for the app, delegated to Microsoft.App/environments (Flex Consumption) or Microsoft.Web/serverFarms.')
param appSubnetId string = ''

@description('Likewise for the consumer in Container Apps: id of an existing subnet of /27 or larger, delegated to Microsoft.App/environments.')
param consumerSubnetId string = ''

@description('Likewise for private endpoints: id of an existing subnet.')
param endpointSubnetId string = ''

@description('Make the private DNS zones of the endpoints. With false a policy of the organisation, or a person, enters the names.')
param privateDnsZones bool = true

@description('Open the app to the virtual network only, through a private endpoint. It is then deployed and looked at from inside.')
param privateApp bool = false

@description('Private endpoints for resources that exist: id, group (namespace, Sql, ...) and zone (privatelink.servicebus.windows.net, ...).')
param furtherEndpoints array = []

var token = toLower(uniqueString(subscription().id, environmentName, location))
var tags = {
  'azd-env-name': environmentName
}

var groupName = empty(resourceGroupName) ? 'rg-${environmentName}' : resourceGroupName

// /subscriptions/<2>/resourceGroups/<4>/providers/<6>/<7>/<8>/<9>/<10>/<11>/<12>
var givenPlans = filter(plans, each => !empty(each.id))
var givenContainers = filter(cosmosContainers, each => !empty(each.id))
var givenResources = filter(resources, each => !empty(each.id))
var givenMetrics = filter(metricResources, each => !empty(each.id))
var givenNamespaces = filter(serviceBusNamespaces, each => !empty(each.id))
var givenHubs = filter(eventHubs, each => !empty(each.id))
var givenAccounts = filter(storageAccounts, each => !empty(each.id))

// The consumer's own; what is not given has parts all the same, and nobody uses them.
var nothing = '/subscriptions/-/resourceGroups/-/providers/-/-/-/-/-/-/-'
var eventHub = split(empty(eventHubId) ? nothing : eventHubId, '/')
var cosmos = split(empty(cosmosContainerId) ? nothing : cosmosContainerId, '/')
var registry = split(!empty(consumerRegistryId) ? consumerRegistryId : empty(consumerImage) ? nothing : fail('consumerImage is set, so consumerRegistryId (TIDEMARK_CONSUMER_REGISTRY_ID) is needed, too'), '/')

// Each once, however often and in whatever case it is named: a role cannot be given twice. Modules are made of these in
// loops and not by conditions, because Resource Manager looks for the resource group of a module even where its
// condition is false.
var planIds = assignTargetRoles ? union(map(givenPlans, each => toLower(each.id)), []) : []
var planGroups = union(map(concat(planIds, resourceIds), id => join(take(split(id, '/'), 5), '/')), [])
// Monitoring Reader, which is the built-in role for both, cannot be given twice on a group.
var metricGroups = filter(assignTargetRoles ? union(map(givenMetrics, each => join(take(split(toLower(each.id), '/'), 5), '/')), []) : [], id => customRoles || !contains(planGroups, id))
var namespaceIds = assignTargetRoles ? union(map(givenNamespaces, each => toLower(each.id)), []) : []
var hubIds = assignTargetRoles ? union(map(givenHubs, each => toLower(each.id)), empty(eventHubId) ? [] : [toLower(eventHubId)]) : []
var accountGrants = assignTargetRoles ? union(flatten(map(givenAccounts, each => map(each.?reads ?? ['queues'], what => '${toLower(each.id)}|${what}'))), []) : []
var consumerContainers = assignTargetRoles && !empty(cosmosContainerId) ? [cosmosContainerId] : []
var scaledIds = union(map(givenContainers, each => toLower(each.id)), scaleCosmosThroughput && !empty(cosmosContainerId) ? [toLower(cosmosContainerId)] : [])
var cosmosAccountIds = assignTargetRoles ? union(map(scaledIds, id => join(take(split(id, '/'), 9), '/')), []) : []
var registryIds = assignTargetRoles && !empty(consumerImage) && !empty(consumerRegistryId) ? [consumerRegistryId] : []

// A resource of another type has no role of ours: the module refuses it by name.
var resourceIds = assignTargetRoles ? union(map(givenResources, each => toLower(each.id)), []) : []
var resourceTypes = union(map(resourceIds, id => join(take(skip(split(id, '/'), 6), 2), '/')), [])

// Roles of our own end at what is used. The others are those that docs/deploying/roles.md lists beside them.
var ourRoles = {
  plan: guid(subscription().id, token, 'plan')
  autoscale: guid(subscription().id, token, 'autoscale')
  serviceBus: guid(subscription().id, token, 'service-bus')
  throughput: guid(subscription().id, token, 'throughput')
  'microsoft.app/containerapps': guid(subscription().id, token, 'container-app')
  'microsoft.compute/virtualmachinescalesets': guid(subscription().id, token, 'scale-set')
  'microsoft.eventhub/namespaces': guid(subscription().id, token, 'event-hubs-units')
  'microsoft.servicebus/namespaces': guid(subscription().id, token, 'service-bus-units')
  metrics: guid(subscription().id, token, 'metrics')
}
var builtInRoles = {
  plan: '2cc479cb-7b4d-49a8-b449-8c00fd0f0a4b' // Web Plan Contributor
  autoscale: '43d0d8ad-25c7-4714-9337-8ba259a9fe05' // Monitoring Reader
  serviceBus: '090c5cfd-751d-490a-894a-3ce6f1109419' // Azure Service Bus Data Owner
  throughput: '230815da-be43-4aae-9cb4-875f7bd000aa' // Cosmos DB Operator
  'microsoft.app/containerapps': '358470bc-b998-42bd-ab17-a7e34c199c0f' // Container Apps Contributor
  'microsoft.compute/virtualmachinescalesets': '9980e02c-c2be-4d73-94e8-173b1dc7cf3c' // Virtual Machine Contributor
  'microsoft.eventhub/namespaces': 'f526a384-b230-433a-b45c-95f59c4a2dec' // Azure Event Hubs Data Owner
  'microsoft.servicebus/namespaces': '090c5cfd-751d-490a-894a-3ce6f1109419' // Azure Service Bus Data Owner
  metrics: '43d0d8ad-25c7-4714-9337-8ba259a9fe05' // Monitoring Reader
}
var roleIds = union(customRoles ? ourRoles : builtInRoles, serviceBusDataOwner ? { serviceBus: builtInRoles.serviceBus } : {})
var roleSubscriptions = union([toLower(subscription().id)], map(concat(planIds, metricGroups, namespaceIds, cosmosAccountIds, resourceIds), id => join(take(split(id, '/'), 3), '/')))

// -- settings ---------------------------------------------------------------------------------------------------------

// Most instances that may run at once, among whom the fleet's rate is shared out.
var instanceLimits = {
  FlexConsumption: maximumInstanceCount
  ElasticPremium: max(elasticInstanceLimit, planInstances)
  Dedicated: planInstances
}
var leavesPlan = planIsScaled && hostingPlan != 'Dedicated' ? fail('planIsScaled is of a Dedicated plan: other plans scale themselves') : planIsScaled
var mostInstances = consumerMaximumInstances > 0 ? consumerMaximumInstances : leavesPlan ? fail('with planIsScaled, consumerMaximumInstances is needed: the maximum of the policy that scales the plan') : instanceLimits[hostingPlan]

// The consumer has the same settings in the function app and as a process.
// A slice lasts 45 s, its shutdown, and 10 s for closing; past functionTimeout (10 min) the host ends the worker with all
// functions in it.
var shutdown = consumerHosting == 'slices' && consumerShutdown > 540 ? fail('with consumerHosting slices, consumerShutdown may be 540 at most: the host ends a function after ten minutes') : '${consumerShutdown}s'
var hostingSettings = {
  CONSUMER_HOSTING: consumerHosting
  CONSUME_SCHEDULE: consumeSchedule
  CONSUMER_SHUTDOWN: shutdown
  CONSUMER_MAXIMUM_INSTANCES: '${mostInstances}'
}
var eventHubSettings = {
  EventHubConnection__fullyQualifiedNamespace: '${eventHub[8]}.servicebus.windows.net'
  EVENTHUB_NAME: eventHub[10]
  EVENTHUB_CONSUMERGROUP: eventHubConsumerGroup
}
var cosmosSettings = {
  CosmosConnection__accountEndpoint: 'https://${cosmos[8]}.documents.azure.com:443/'
  COSMOS_DATABASE: cosmos[10]
  COSMOS_CONTAINER: cosmos[12]
}
var consumerConnections = concat(empty(eventHubId) ? [] : ['EventHubConnection'], empty(cosmosContainerId) ? [] : ['CosmosConnection'])
var consumerSettings = union(hostingSettings, empty(eventHubId) ? {} : eventHubSettings, empty(cosmosContainerId) ? {} : cosmosSettings)

// What the policies name.
var targetSettings = toObject(filter(concat(givenPlans, givenContainers, givenResources, givenMetrics), each => !empty(each.?setting ?? '')), each => each.?setting ?? '', each => each.id)
var namespaceSettings = toObject(concat(givenNamespaces, givenHubs), each => '${each.connection}__fullyQualifiedNamespace', each => '${split(each.id, '/')[8]}.servicebus.windows.net')
var blobSettings = toObject(givenAccounts, each => '${each.connection}__blobServiceUri', each => 'https://${split(each.id, '/')[8]}.blob.${environment().suffixes.storage}/')
var queueSettings = toObject(givenAccounts, each => '${each.connection}__queueServiceUri', each => 'https://${split(each.id, '/')[8]}.queue.${environment().suffixes.storage}/')
var tableSettings = toObject(givenAccounts, each => '${each.connection}__tableServiceUri', each => 'https://${split(each.id, '/')[8]}.table.${environment().suffixes.storage}/')
var sourceConnections = map(concat(givenNamespaces, givenHubs, givenAccounts), each => each.connection)

// -- network ----------------------------------------------------------------------------------------------------------

// What does not fit together is refused here: an app that cannot reach its own storage would only be found by its silence.
var namedSubnets = '${appSubnetId}${consumerSubnetId}${endpointSubnetId}'
var madeNetworkId = '${subscription().id}/resourceGroups/${groupName}/providers/Microsoft.Network/virtualNetworks/vnet-tidemark-${token}'
var madeSubnets = empty(namedSubnets) || !privateNetwork ? '${madeNetworkId}/subnets/' : fail('privateNetwork makes a network of its own: either that, or the subnets of another')
var namedSubnetsOf = {
  app: empty(appSubnetId) && !empty(endpointSubnetId) && !privateNetwork ? fail('endpointSubnetId closes the storage account, so appSubnetId (TIDEMARK_APP_SUBNET_ID) is needed, too') : appSubnetId
  consumer: empty(consumerSubnetId) && !empty(endpointSubnetId) && !empty(consumerImage) && !privateNetwork ? fail('endpointSubnetId closes the storage account, so consumerSubnetId (TIDEMARK_CONSUMER_SUBNET_ID) is needed for consumerImage, too') : consumerSubnetId
  endpoints: empty(endpointSubnetId) && !privateNetwork && (privateApp || !empty(furtherEndpoints)) ? fail('privateApp and furtherEndpoints need privateNetwork or endpointSubnetId') : endpointSubnetId
}
var madeSubnetsOf = {
  app: '${madeSubnets}app'
  consumer: '${madeSubnets}consumer'
  endpoints: '${madeSubnets}endpoints'
}
var subnets = privateNetwork ? madeSubnetsOf : namedSubnetsOf
var privateStorage = !empty(subnets.endpoints)
var storageEndpoints = map(['blob', 'queue', 'table'], service => {
  name: 'storage-${service}'
  id: '${subscription().id}/resourceGroups/${groupName}/providers/Microsoft.Storage/storageAccounts/sttidemark${token}'
  group: service
  zone: 'privatelink.${service}.${environment().suffixes.storage}'
})
var givenEndpoints = map(furtherEndpoints, each => {
  name: '${last(split(each.id, '/'))}-${toLower(each.group)}'
  id: each.id
  group: each.group
  zone: each.zone
})
var appEndpoints = privateApp ? [
  {
    name: 'app'
    id: '${subscription().id}/resourceGroups/${groupName}/providers/Microsoft.Web/sites/func-tidemark-${token}'
    group: 'sites'
    zone: 'privatelink.azurewebsites.net'
  }
] : []

// -- what is made -----------------------------------------------------------------------------------------------------

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

module queries './app/queries.bicep' = {
  name: 'queries'
  scope: group
  params: {
    workspaceName: monitoring.outputs.workspaceName
  }
}

module workbook './app/workbook.bicep' = {
  name: 'workbook'
  scope: group
  params: {
    workspaceName: monitoring.outputs.workspaceName
    location: location
    tags: tags
  }
  dependsOn: [
    queries
  ]
}

module grafanaDashboard './app/grafana.bicep' = if (grafana) {
  name: 'grafana'
  scope: group
  params: {
    name: 'tidemark-${token}'
    workspaceName: monitoring.outputs.workspaceName
    location: location
    tags: tags
  }
  dependsOn: [
    queries
  ]
}

module alertRules './app/alerts.bicep' = if (alerts) {
  name: 'alerts'
  scope: group
  params: {
    workspaceName: monitoring.outputs.workspaceName
    actionGroupName: 'ag-tidemark-${token}'
    location: location
    tags: tags
    // Each once: two receivers of one name are refused.
    emails: union(filter(map(split(alertEmails, ','), each => toLower(trim(each))), each => !empty(each)), [])
    lagLimit: alertLag
    consumerAlwaysTells: consumerHosting == 'slices' || !empty(consumerImage)
  }
  dependsOn: [
    queries
  ]
}

module storage './app/storage.bicep' = {
  name: 'storage'
  scope: group
  params: {
    name: 'sttidemark${token}'
    deploymentContainerName: 'app-package'
    location: location
    tags: tags
    closed: privateStorage
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

module ownRoles './app/custom-roles.bicep' = if (assignTargetRoles && customRoles) {
  name: 'tidemark-custom-roles-${token}'
  params: {
    ids: ourRoles
    suffix: token
    kinds: resourceTypes
    assignableScopes: roleSubscriptions
  }
}

module planRoles './app/rbac-plan.bicep' = [for id in planIds: {
  name: 'tidemark-plan-${uniqueString(token, id)}'
  scope: resourceGroup(split(id, '/')[2], split(id, '/')[4])
  params: {
    planName: split(id, '/')[8]
    roleId: roleIds.plan
    principalId: identity.outputs.principalId
  }
  dependsOn: [
    ownRoles
  ]
}]

module planGroupRoles './app/rbac-group.bicep' = [for id in planGroups: {
  name: 'tidemark-plan-group-${uniqueString(token, id)}'
  scope: resourceGroup(split(id, '/')[2], split(id, '/')[4])
  params: {
    roleId: roleIds.autoscale
    why: 'Tidemark: see whether an Azure Monitor autoscale setting holds the plan'
    principalId: identity.outputs.principalId
  }
  dependsOn: [
    ownRoles
  ]
}]

module metricGroupRoles './app/rbac-group.bicep' = [for id in metricGroups: {
  name: 'tidemark-metric-group-${uniqueString(token, id)}'
  scope: resourceGroup(split(id, '/')[2], split(id, '/')[4])
  params: {
    roleId: roleIds.metrics
    why: 'Tidemark: read platform metrics of resources in the group'
    principalId: identity.outputs.principalId
  }
  dependsOn: [
    ownRoles
  ]
}]

module serviceBusRoles './app/rbac-service-bus.bicep' = [for id in namespaceIds: {
  name: 'tidemark-service-bus-${uniqueString(token, id)}'
  scope: resourceGroup(split(id, '/')[2], split(id, '/')[4])
  params: {
    namespaceName: split(id, '/')[8]
    roleId: roleIds.serviceBus
    principalId: identity.outputs.principalId
  }
  dependsOn: [
    ownRoles
  ]
}]

module resourceRoles './app/rbac-resource.bicep' = [for id in resourceIds: {
  name: 'tidemark-resource-${uniqueString(token, id)}'
  scope: resourceGroup(split(id, '/')[2], split(id, '/')[4])
  params: {
    type: join(take(skip(split(id, '/'), 6), 2), '/')
    name: split(id, '/')[8]
    roleId: roleIds[join(take(skip(split(id, '/'), 6), 2), '/')]
    principalId: identity.outputs.principalId
  }
  dependsOn: [
    ownRoles
  ]
}]

module eventHubRoles './app/rbac-event-hub.bicep' = [for id in hubIds: {
  name: 'tidemark-event-hub-${uniqueString(token, id)}'
  scope: resourceGroup(split(id, '/')[2], split(id, '/')[4])
  params: {
    namespaceName: split(id, '/')[8]
    hubName: split(id, '/')[10]
    principalId: identity.outputs.principalId
  }
}]

module accountRoles './app/rbac-storage-account.bicep' = [for grant in accountGrants: {
  name: 'tidemark-storage-${uniqueString(token, grant)}'
  scope: resourceGroup(split(grant, '/')[2], split(grant, '/')[4])
  params: {
    accountName: split(split(grant, '|')[0], '/')[8]
    what: split(grant, '|')[1]
    principalId: identity.outputs.principalId
  }
}]

module cosmosRoles './app/rbac-cosmos.bicep' = [for id in consumerContainers: {
  name: 'tidemark-cosmos-${uniqueString(token, id)}'
  scope: resourceGroup(split(id, '/')[2], split(id, '/')[4])
  params: {
    accountName: split(id, '/')[8]
    databaseName: split(id, '/')[10]
    containerName: split(id, '/')[12]
    principalId: identity.outputs.principalId
  }
}]

module throughputRoles './app/rbac-cosmos-throughput.bicep' = [for id in cosmosAccountIds: {
  name: 'tidemark-throughput-${uniqueString(token, id)}'
  scope: resourceGroup(split(id, '/')[2], split(id, '/')[4])
  params: {
    accountName: split(id, '/')[8]
    roleId: roleIds.throughput
    principalId: identity.outputs.principalId
  }
  dependsOn: [
    ownRoles
  ]
}]

module registryRoles './app/rbac-registry.bicep' = [for id in registryIds: {
  name: 'tidemark-registry-${uniqueString(token, id)}'
  scope: resourceGroup(split(id, '/')[2], split(id, '/')[4])
  params: {
    registryName: split(id, '/')[8]
    principalId: identity.outputs.principalId
  }
}]

module network './app/network.bicep' = if (privateNetwork) {
  name: 'network'
  scope: group
  params: {
    name: 'vnet-tidemark-${token}'
    location: location
    tags: tags
    addressPrefix: networkAddressPrefix
    appDelegation: hostingPlan == 'FlexConsumption' ? 'Microsoft.App/environments' : 'Microsoft.Web/serverFarms'
  }
}

// Before the app, which opens its storage when it starts.
module endpoints './app/private-endpoints.bicep' = if (privateStorage) {
  name: 'private-endpoints'
  scope: group
  params: {
    endpoints: concat(storageEndpoints, givenEndpoints)
    subnetId: subnets.endpoints
    makeZones: privateDnsZones
    token: token
    location: location
    tags: tags
  }
  dependsOn: [
    network
    storage
  ]
}

module functions './app/functions.bicep' = {
  name: 'functions'
  scope: group
  params: {
    name: 'func-tidemark-${token}'
    planName: 'plan-tidemark-${token}'
    location: location
    tags: tags
    hostingPlan: hostingPlan
    planSku: planSku
    planInstances: planInstances
    leavesPlan: leavesPlan
    elasticInstanceLimit: elasticInstanceLimit
    pythonVersion: pythonVersion
    alwaysReady: alwaysReady
    instanceMemoryMB: instanceMemoryMB
    maximumInstanceCount: maximumInstanceCount
    subnetId: subnets.app
    openToInternet: !privateApp
    storageAccountName: storage.outputs.name
    deploymentContainerName: storage.outputs.deploymentContainerName
    applicationInsightsName: monitoring.outputs.applicationInsightsName
    identityId: identity.outputs.id
    identityClientId: identity.outputs.clientId
    identityPrincipalId: identity.outputs.principalId
    collectSchedule: collectSchedule
    verifySchedule: verifySchedule
    scalingLogRetention: scalingLogRetention
    consumerHosting: consumerHosting
    signInClientId: signInClientId
    signInTenantId: empty(signInTenantId) ? subscription().tenantId : signInTenantId
    signInClientApplications: signInClientApplications
    connections: union(sourceConnections, consumerConnections)
    // What is given by name wins.
    furtherSettings: union(targetSettings, namespaceSettings, blobSettings, queueSettings, tableSettings, consumerSettings, additionalAppSettings)
  }
  // The host opens its storage when it starts, and gives up for a while when it may not.
  dependsOn: [
    roles
    network
    endpoints
  ]
}

module appEndpoint './app/private-endpoints.bicep' = if (privateApp) {
  name: 'private-endpoint-of-app'
  scope: group
  params: {
    endpoints: appEndpoints
    subnetId: subnets.endpoints
    makeZones: privateDnsZones
    token: token
    location: location
    tags: tags
  }
  dependsOn: [
    functions
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
    subnetId: subnets.consumer
    storageAccountName: storage.outputs.name
    workspaceName: monitoring.outputs.workspaceName
    applicationInsightsName: monitoring.outputs.applicationInsightsName
    identityId: identity.outputs.id
    identityClientId: identity.outputs.clientId
    connections: consumerConnections
    settings: union(consumerSettings, additionalAppSettings)
  }
  // Without the right to pull there is no instance, and a consumer that may not read ends with an error.
  dependsOn: [
    roles
    eventHubRoles
    cosmosRoles
    registryRoles
    network
    endpoints
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

@description('Object id of the identity that needs the roles of docs/deploying/roles.md on every further target.')
output TIDEMARK_PRINCIPAL_ID string = identity.outputs.principalId

@description('Client id of that identity, for <connection>__clientId of further connections.')
output TIDEMARK_CLIENT_ID string = identity.outputs.clientId

@description('Open to everybody; 200 while configuration and state store are in order.')
output TIDEMARK_HEALTH_URL string = '${functions.outputs.baseUrl}/api/health'

@description('Client id of the app registration that people sign in with; empty where function keys open the app.')
output TIDEMARK_SIGN_IN_CLIENT_ID string = signInClientId

@description('The dashboard; where nobody signs in, it asks for a function key (?code=...).')
output TIDEMARK_DASHBOARD_URL string = '${functions.outputs.baseUrl}/api/dashboard'

@description('Resource id of the workbook: in the portal, Monitor, Workbooks, Tidemark.')
output TIDEMARK_WORKBOOK_ID string = workbook.outputs.id
