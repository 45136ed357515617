// The identity's role on a whole resource group. Azure Monitor autoscale settings are listed by resource group, so that
// role cannot be on the plan; and a role on resources of any type can be given here only.

@description('Id of the role: our own, or Monitoring Reader.')
param roleId string

@description('What the assignment is for.')
param why string

@description('Object id of the identity.')
param principalId string

resource onGroup 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(resourceGroup().id, principalId, roleId)
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', roleId)
    principalId: principalId
    principalType: 'ServicePrincipal'
    description: why
  }
}
