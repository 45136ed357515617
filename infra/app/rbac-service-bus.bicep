// The identity's role on a Service Bus namespace that it reads. Deployed to the resource group of that namespace.

@description('Name of the Service Bus namespace.')
param namespaceName string

@description('Id of the role: our own, or Azure Service Bus Data Owner.')
param roleId string

@description('Object id of the identity.')
param principalId string

resource serviceBus 'Microsoft.ServiceBus/namespaces@2021-11-01' existing = {
  name: namespaceName
}

resource onNamespace 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(serviceBus.id, principalId, roleId)
  scope: serviceBus
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', roleId)
    principalId: principalId
    principalType: 'ServicePrincipal'
    description: 'Tidemark: read message counts and status of queues, topics and subscriptions'
  }
}
