// The identity's role on the Service Bus namespace it reads. Deployed to the resource group of that namespace.

@description('Name of the Service Bus namespace.')
param namespaceName string

@description('Object id of the identity.')
param principalId string

var serviceBusDataOwner = '090c5cfd-751d-490a-894a-3ce6f1109419'

resource serviceBus 'Microsoft.ServiceBus/namespaces@2021-11-01' existing = {
  name: namespaceName
}

// Message counts are told by the administration API, which asks for the Manage right; among the built-in data
// roles only this one has it. docs/deploying.md says what is known about less.
resource onNamespace 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(serviceBus.id, principalId, serviceBusDataOwner)
  scope: serviceBus
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', serviceBusDataOwner)
    principalId: principalId
    principalType: 'ServicePrincipal'
    description: 'Tidemark: read message counts and status of queues, topics and subscriptions'
  }
}
