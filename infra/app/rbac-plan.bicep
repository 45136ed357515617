// The identity's role on an App Service Plan that it scales. Deployed to the resource group of that plan.

@description('Name of the App Service Plan.')
param planName string

@description('Id of the role: our own, or Web Plan Contributor.')
param roleId string

@description('Object id of the identity.')
param principalId string

resource plan 'Microsoft.Web/serverfarms@2024-04-01' existing = {
  name: planName
}

resource onPlan 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(plan.id, principalId, roleId)
  scope: plan
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', roleId)
    principalId: principalId
    principalType: 'ServicePrincipal'
    description: 'Tidemark: read the plan, its SKUs and operations; set its number of instances'
  }
}
