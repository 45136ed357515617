// The identity's role on a resource group with plans that it scales. Azure Monitor autoscale settings are listed by
// resource group, so this role cannot be on the plan.

@description('Id of the role: our own, or Monitoring Reader.')
param roleId string

@description('Object id of the identity.')
param principalId string

resource onGroup 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(resourceGroup().id, principalId, roleId)
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', roleId)
    principalId: principalId
    principalType: 'ServicePrincipal'
    description: 'Tidemark: see whether an Azure Monitor autoscale setting holds the plan'
  }
}
