// The identity's role on a resource whose size it sets: one of the kinds that are known. Deployed to the resource group of it.

@description('Type of the resource, in lower case.')
@allowed([
  'microsoft.app/containerapps'
  'microsoft.compute/virtualmachinescalesets'
  'microsoft.eventhub/namespaces'
  'microsoft.servicebus/namespaces'
])
param type string

@description('Name of the resource.')
param name string

@description('Id of the role: our own for that type, or a built-in one.')
param roleId string

@description('Object id of the identity.')
param principalId string

var grant = {
  roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', roleId)
  principalId: principalId
  principalType: 'ServicePrincipal'
  description: 'Tidemark: read the resource, set its size'
}

resource containerApp 'Microsoft.App/containerApps@2024-03-01' existing = {
  name: name
}

resource onContainerApp 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (type == 'microsoft.app/containerapps') {
  name: guid(containerApp.id, principalId, roleId)
  scope: containerApp
  properties: grant
}

resource scaleSet 'Microsoft.Compute/virtualMachineScaleSets@2024-07-01' existing = {
  name: name
}

resource onScaleSet 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (type == 'microsoft.compute/virtualmachinescalesets') {
  name: guid(scaleSet.id, principalId, roleId)
  scope: scaleSet
  properties: grant
}

resource eventHubs 'Microsoft.EventHub/namespaces@2024-01-01' existing = {
  name: name
}

resource onEventHubs 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (type == 'microsoft.eventhub/namespaces') {
  name: guid(eventHubs.id, principalId, roleId)
  scope: eventHubs
  properties: grant
}

resource serviceBus 'Microsoft.ServiceBus/namespaces@2021-11-01' existing = {
  name: name
}

resource onServiceBus 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (type == 'microsoft.servicebus/namespaces') {
  name: guid(serviceBus.id, principalId, roleId)
  scope: serviceBus
  properties: grant
}
